"""Headers of files of weights, safetensors and GGUF: names, types, shapes and offsets of tensors.

Parsed as untrusted input: every number is checked against the file's size before it is used. Standard library only.
"""
