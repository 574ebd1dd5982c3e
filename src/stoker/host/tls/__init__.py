"""TLS between our own programs: keys, certificates, and contexts that trust one fleet's CA alone.

Promises: the only importer of `cryptography`; who may have a certificate is decided elsewhere.
Start with `contexts`.
"""
