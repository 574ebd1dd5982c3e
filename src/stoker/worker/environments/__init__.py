"""Python environments on this machine: built by uv once from a project's own files, then looked up in milliseconds.

    maker = Maker(shelf=EnvironmentCache(settings.envs, clock=clock), environment=…, own_prefix=…, clock=clock)
    found = maker.look(grant.spec.environment)          # EnvironmentReady, EnvironmentImpossible or None
    found = maker.make(grant.spec.environment, project=workspace, say=lines.append, is_stopped=stop.is_set)

A job's choices are narrowed to this machine's (`protocol.environment_messages.choose`); `envs/DIGEST/` is named by the
choice's digest and the platform, and `ready.json` in it is written last. A caller that runs a program in it:

- passes `EnvironmentReady.interpreter` to the recipe `command` as `python`: `host.interpreter` then does what
  activating does (`VIRTUAL_ENV`, `PATH`);
- marks it as in use for as long as the program runs (`EnvironmentCache.mark`), so that it is not pruned;
- puts the project itself on `PYTHONPATH`, before what is there: `EnvironmentReady.python_path` returns the workspace,
  its `src/`, and those of the other local packages that the lock names. The project is never installed: its code comes
  with the job, and changes with every submission.
"""
