"""Key terms of contracts: a party, a date, the governing law. Checked by substrings of the contract itself.

The contracts come without annotations, so an answer is right if it gives a term of the kind asked for that stands in
the contract in these words; where the contract has none by the patterns below, "none" is right. It says whether a model
reads and copies, not whether a lawyer would agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from exactlm.bench.data import DataSource
from exactlm.bench.question import Answer, Completion
from exactlm.bench.task.base import Item, Task, Verdict

MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
DAY = r"\d{1,2}(?:st|nd|rd|th)?"
DATE = re.compile(
    rf"\b(?:{MONTH} {DAY},? \d{{4}}|{DAY} (?:day of )?{MONTH},? \d{{4}}|\d{{1,2}}/\d{{1,2}}/(?:\d{{4}}|\d{{2}}))\b",
    re.I,
)
SUFFIX = r"(?:Inc|LLC|L\.L\.C|Corp|Corporation|Company|Ltd|Limited|LP|L\.P|Trust|SA|AG|GmbH|KGaA)"
PARTY = re.compile(rf"\b(?:[\w&.'-]+,? ){{1,3}}?{SUFFIX}\b", re.I)
LAW = re.compile(
    r"(?:govern|constru|interpret)[^.]{0,160}?laws? of (?:the )?(?:(?:State|Commonwealth|Province) of )?"
    r"((?:[A-Z]\w+ ?){1,3})"
)
MAX_TOKENS = 24


@dataclass(frozen=True)
class Term:
    """A kind of term: the question, and what every term of the kind matches."""

    name: str
    question: str
    pattern: re.Pattern[str]


TERMS = (
    Term("party", "Which company is a party to this contract?", PARTY),
    Term("date", "What date is written in this contract?", DATE),
    Term("law", "Which state's or country's law governs this contract?", LAW),
)


class Contracts(Task):
    """label: the answer in lower case. value: 1 if it is right. verbatim: the whole answer stands in the contract."""

    name = "contracts"
    template = (
        "Contract:\nThis lease is made on May 3, 2011 by Northgate Homes, Inc. and is governed by the laws of the "
        "State of Ohio.\n\nQuestion: What date is written in this contract?\nAnswer: May 3, 2011\n\n"
        "Question: Which state's or country's law governs this contract?\nAnswer: Ohio\n\n"
        "Question: Which company guarantees this contract?\nAnswer: none\n\n"
        "Contract:\n{contract}\n\nQuestion: {question}\nAnswer:"
    )

    def __init__(self, data: DataSource) -> None:
        self._data = data

    def load(self) -> list[Item]:
        items = []
        for name, text in self._data.read_texts("contracts"):
            contract = plain(text)
            for term in TERMS:
                prompt = self.template.format(contract=contract, question=term.question)
                items.append(Item(f"{name}/{term.name}", Completion(prompt, MAX_TOKENS, ("\n",)), (term, contract)))
        return items

    def judge(self, item: Item, answer: Answer) -> Verdict:
        assert answer.text is not None
        term, contract = item.reference
        said = plain(answer.text).strip(" .").lower()
        is_right = check_term(term, contract, said)
        is_verbatim = bool(said) and said in contract.lower()
        return Verdict(said, float(is_right), {"right": is_right, "verbatim": is_verbatim})


def check_term(term: Term, contract: str, said: str) -> bool:
    """Whether `said`, in lower case, gives a term of this kind that stands in the contract, or "none" if none does."""
    if term.pattern is LAW:
        laws = {match[1].strip().lower() for match in LAW.finditer(contract)}
        return any(law in said for law in laws) if laws else said.startswith("none")
    if not term.pattern.search(contract):
        return said.startswith("none")
    return any(match[0] in contract.lower() for match in term.pattern.finditer(said))


def plain(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())
