"""The OpenAI-compatible HTTP server, behind the extra `server`. Start reading at app.py.

One thread steps the engine (loop.py); the event loop only reads requests and writes bytes (generate.py, stream.py);
parsing, templates and tokenisation run in worker threads. Knows nothing of models or kernels.
"""
