"""The tasks, one small file each: a prompt template, how data become questions, and when an answer is right."""
