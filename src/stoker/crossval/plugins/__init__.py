"""Plug-ins that ship: programs of their own, one per runtime, which speak the protocol of `plugin_process`.

They run in the interpreter that has the runtime, which need not have Stoker: they import the standard library, each
other and the runtime. `runtimes` starts them.
"""
