"""One engine in one process, under the interpreter that has it. Runs where exactlm may not be installed, so nothing
here imports it but the file of its own engine."""
