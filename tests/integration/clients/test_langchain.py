"""LangChain's OpenAI classes, in the interpreter EXACTLM_CLIENTS_PYTHON."""

from __future__ import annotations

import json
import subprocess

from exactlm import LLM, SamplingParams
from tests.integration.clients.conftest import find_python
from tests.integration.server.process import ServerProcess

PROGRAM = """
import json, sys
from langchain_openai import ChatOpenAI, OpenAI
url, = sys.argv[1:]
settings = dict(base_url=url + "/v1", api_key="none", model="tiny", max_retries=0)
settings |= dict(temperature=0.7, max_tokens=12, seed=4)
llm, chat = OpenAI(**settings), ChatOpenAI(**settings)
print(json.dumps({
    "invoke": llm.invoke("the thing"),
    "batch": llm.batch(["the thing", "and so"]),
    "stream": "".join(llm.stream("the thing")),
    "chat": chat.invoke("the other thing").content,
    "chat_stream": "".join(piece.content for piece in chat.stream("the other thing")),
}))
"""


def test_langchain_gets_the_answers_of_the_python_interface(server: ServerProcess, tiny_llm: LLM) -> None:
    python = find_python("langchain_openai")
    done = subprocess.run([python, "-c", PROGRAM, server.url], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    params = SamplingParams(max_tokens=12, temperature=0.7, seed=4)
    first, second = (output.outputs[0].text for output in tiny_llm.generate(["the thing", "and so"], params))
    chat = tiny_llm.chat([{"role": "user", "content": "the other thing"}], params)[0].outputs[0].text
    assert json.loads(done.stdout) == {
        "invoke": first,
        "batch": [first, second],
        "stream": first,
        "chat": chat,
        "chat_stream": chat,
    }
