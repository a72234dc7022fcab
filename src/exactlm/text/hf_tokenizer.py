"""Builds a tokenizer from a Hugging Face directory: tokenizer.json (or tokenizer.model) and the files beside it.

Follows what transformers would do with the same files. Knows nothing of weights or model types.
"""

import json
from pathlib import Path
from typing import Any

from exactlm.errors import TokenizerError, UnsupportedError
from exactlm.text.sentencepiece import make_added_token
from exactlm.text.sentencepiece_file import read_sentencepiece
from exactlm.text.settings import TextSettings, dump_canonical

# These classes rebuild the post-processor from add_bos_token/add_eos_token, whatever tokenizer.json says.
_FLAG_CLASSES = ("Llama", "CodeLlama", "Gemma", "Cohere")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MAX_BYTES = 256 * 2**20

Json = dict[str, Any]


def build_from_directory(directory: str | Path) -> tuple[str, Json, str | None]:
    """Return (tokenizer.json text, settings, chat template or None) for the checkpoint in `directory`.

    TokenizerError names a damaged file or a contradiction; UnsupportedError what is not implemented.
    """
    folder = Path(directory)
    try:
        return _build(folder)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise TokenizerError(f"{folder}: malformed tokenizer files ({error!r:.200}); download them again") from None


def _build(folder: Path) -> tuple[str, Json, str | None]:
    config = _read_object(folder / "tokenizer_config.json")
    tokens_map = _read_object(folder / "special_tokens_map.json")
    document = _read_document(folder)
    _add_missing(document, config)
    ids = _list_ids(document)
    named = {name: _find_named(name, config, tokens_map, ids) for name in _NAMED_TOKENS}
    default, templates = _read_templates(folder, config)
    settings = _make_settings(folder, document, config, named, templates)
    document.update(truncation=None, padding=None, post_processor=None)
    return dump_canonical(document), settings.to_dict(), default


def _read_document(folder: Path) -> Json:
    path = folder / "tokenizer.json"
    if path.exists():
        document = _read_object(path)
        if not isinstance(document.get("model"), dict) or not isinstance(document["model"].get("vocab"), dict | list):
            raise TokenizerError(f"{path}: has no model.vocab; it is not a tokenizer of the tokenizers library")
        document["model"].setdefault("type", "BPE" if "merges" in document["model"] else "Unigram")
        if document["model"]["type"] not in ("BPE", "Unigram"):
            raise UnsupportedError(f"{path}: model type {document['model']['type']!r}; implemented: BPE, Unigram")
        vocab = document["model"]["vocab"]
        document["added_tokens"] = [_check_added(token, vocab, path) for token in document.get("added_tokens") or []]
        return document
    model = folder / "tokenizer.model"
    if model.exists():
        return read_sentencepiece(model)
    found = sorted(item.name for item in folder.glob("*") if "token" in item.name or "vocab" in item.name)
    raise UnsupportedError(
        f"{folder}: has neither tokenizer.json nor tokenizer.model (found: {', '.join(found) or 'nothing'}); "
        "save the tokenizer with transformers' save_pretrained first"
    )


def _check_added(token: object, vocab: object, path: Path) -> Json:
    kinds = {"id": int, "content": str, "special": bool}
    if not isinstance(token, dict) or any(type(token.get(key)) is not kind for key, kind in kinds.items()):
        raise TokenizerError(f"{path}: added token {token!r:.80} lacks an id, content or special flag")
    if isinstance(vocab, dict) and vocab.get(token["content"], token["id"]) != token["id"]:
        raise TokenizerError(
            f"{path}: {token['content']!r} is token {vocab[token['content']]} in the vocabulary "
            f"but {token['id']} among the added tokens; download the file again"
        )
    return token


def _add_missing(document: Json, config: Json) -> None:
    """Take over the added tokens that only tokenizer_config.json lists, and its special flags."""
    known = {token["id"]: token for token in document["added_tokens"]}
    listed = config.get("added_tokens_decoder") or {}
    for key, value in listed.items():
        if not key.isdecimal() or not isinstance(value, dict) or not isinstance(value.get("content"), str):
            raise TokenizerError(f"tokenizer_config.json: added_tokens_decoder[{key!r}] has no content")
        token_id, is_special = int(key), value.get("special") is True
        if token_id not in known:
            flags = {name: value.get(name) is True for name in ("single_word", "lstrip", "rstrip", "normalized")}
            known[token_id] = {**make_added_token(token_id, value["content"], is_special=is_special), **flags}
        elif known[token_id]["content"] != value["content"]:
            raise TokenizerError(
                f"token {token_id} is {known[token_id]['content']!r} in tokenizer.json but {value['content']!r} in "
                "tokenizer_config.json; the two files belong to different models"
            )
        elif is_special:
            known[token_id]["special"] = True
    document["added_tokens"] = [known[token_id] for token_id in sorted(known)]


def _list_ids(document: Json) -> dict[str, int]:
    vocab = document["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {entry[0]: index for index, entry in enumerate(vocab)}
    ids.update((token["content"], token["id"]) for token in document["added_tokens"])
    return ids


def _find_named(name: str, config: Json, tokens_map: Json, ids: dict[str, int]) -> int | None:
    value = config.get(name) if config.get(name) is not None else tokens_map.get(name)
    content = value.get("content") if isinstance(value, dict) else value
    if content is None:
        return None
    if not isinstance(content, str) or content not in ids:
        raise TokenizerError(f"{name} = {content!r:.80} is not in the vocabulary; tokenizer files of different models?")
    return ids[content]


def _make_settings(
    folder: Path, document: Json, config: Json, named: dict[str, int | None], templates: dict[str, str]
) -> TextSettings:
    ends = {named["eos_token"]} if named["eos_token"] is not None else set()
    bos = named["bos_token"]
    for name in ("config.json", "generation_config.json"):
        declared = _read_object(folder / name)
        ends |= _read_end_ids(declared.get("eos_token_id"), folder / name)
        if bos is None and type(declared.get("bos_token_id")) is int:
            bos = declared["bos_token_id"]
    eos = named["eos_token"] if named["eos_token"] is not None else min(ends, default=None)
    num_tokens = max(_list_ids(document).values(), default=-1) + 1
    bos = bos if bos is not None and bos < num_tokens else None
    # Ids that end a generation but lie beyond the tokenizer are padding of the model's vocabulary.
    ends = {token_id for token_id in ends if token_id < num_tokens}
    prefix, suffix = _read_surroundings(document, config, bos, eos)
    special = {token["id"] for token in document["added_tokens"] if token["special"]}
    special |= {value for value in named.values() if value is not None} | ends | ({bos} if bos is not None else set())
    return TextSettings(
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=sorted(ends),
        pad_token_id=named["pad_token"],
        unk_token_id=named["unk_token"],
        prefix_ids=prefix,
        suffix_ids=suffix,
        special_ids=sorted(special),
        named_templates=templates,
    )


def _read_end_ids(value: object, path: Path) -> set[int]:
    items = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(item) is not int or item < 0 for item in items):
        raise TokenizerError(f"{path}: eos_token_id = {value!r:.80} is not a token id or a list of them")
    return set(items)


def _read_surroundings(document: Json, config: Json, bos: int | None, eos: int | None) -> tuple[list[int], list[int]]:
    """Return the ids that transformers puts before and after a text."""
    kind = str(config.get("tokenizer_class") or "").removesuffix("Fast").removesuffix("Tokenizer")
    post = document.get("post_processor")
    if kind in _FLAG_CLASSES or (post is None and "add_bos_token" in config):
        wants_bos = config.get("add_bos_token", kind in _FLAG_CLASSES) is True
        wants_eos = config.get("add_eos_token") is True
        for wanted, value, name in ((wants_bos, bos, "bos"), (wants_eos, eos, "eos")):
            if wanted and value is None:
                raise TokenizerError(f"tokenizer_config.json: add_{name}_token is true but there is no {name}_token")
        return [bos] if wants_bos and bos is not None else [], [eos] if wants_eos and eos is not None else []
    prefix: list[int] = []
    suffix: list[int] = []
    for step in [] if post is None else post.get("processors", [post]):
        if step.get("type") == "TemplateProcessing":
            target = prefix
            for item in step["single"]:
                if "Sequence" in item:
                    target = suffix
                else:
                    target += step["special_tokens"][item["SpecialToken"]["id"]]["ids"]
        elif step.get("type") != "ByteLevel":
            raise UnsupportedError(f"tokenizer.json: post_processor {step.get('type')!r} is not implemented")
    return prefix, suffix


def _read_templates(folder: Path, config: Json) -> tuple[str | None, dict[str, str]]:
    """Return (default template, other templates by name); a template file wins over tokenizer_config.json."""
    value: object = config.get("chat_template")
    as_json = _read_object(folder / "chat_template.json").get("chat_template")
    value = as_json if as_json is not None else value
    path = folder / "chat_template.jinja"
    if path.exists():
        value = _read_text(path)
    named: dict[str, str] = {}
    if isinstance(value, list):
        for item in value:
            if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("name", "template")):
                raise TokenizerError(f"{folder}: chat_template entry {item!r:.80} needs a name and a template")
            named[item["name"]] = item["template"]
        value = named.pop("default", None)
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        named[extra.stem] = _read_text(extra)
    if value is not None and not isinstance(value, str):
        raise TokenizerError(f"{folder}: chat_template is a {type(value).__name__}, expected text or a list")
    return value, named


def _read_object(path: Path) -> Json:
    """Return the JSON object in `path`, empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not JSON ({error}); download it again") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: holds a {type(value).__name__}, expected an object")
    return value


def _read_text(path: Path) -> str:
    if path.stat().st_size > _MAX_BYTES:
        raise TokenizerError(f"{path}: {path.stat().st_size} bytes, more than {_MAX_BYTES}; not a tokenizer file")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not UTF-8 at byte {error.start}; download it again") from None
