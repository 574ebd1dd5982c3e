"""TLS between our own programs: keys, requests, certificates, and contexts that trust one fleet's CA and nobody else.

The only room that knows `cryptography`; who may have a certificate is decided elsewhere.
"""
