"""Python environments on this machine: built by uv once from a project's own files, then looked up in milliseconds.

    maker = Maker(shelf=Shelf(settings.envs, clock=clock), environment=…, own_prefix=sys.prefix, clock=clock)
    found = maker.look(grant.spec.environment)          # Ready | Impossible | None; reads a few small files
    found = maker.make(grant.spec.environment, project=workspace, say=lines.append, is_stopped=stop.is_set)

A job's choices are narrowed to this machine's (`protocol.environment_messages.choose`); `envs/DIGEST/` is named by the
choice's digest and the platform, and `ready.json` in it is written last. A caller that runs a program in it:

- hands `Ready.interpreter` to the recipe `command` as `python`: `host.interpreter` then does what activating does
  (`VIRTUAL_ENV`, `PATH`);
- marks it as in use for as long as the program runs (`Shelf.mark`), so that no pruning takes it away;
- puts the project itself on `PYTHONPATH`, before what is there: `Ready.python_path(workspace)` gives the workspace, its
  `src/`, and those of the other local packages that the lock names. The project is never installed: its code comes with
  the job, and changes with every submission.
"""
