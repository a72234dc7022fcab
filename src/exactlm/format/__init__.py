"""Our model directory: spec/format.md. Knows files, digests and named arrays; not what a tensor means."""
