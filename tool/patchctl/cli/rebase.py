# SPDX-License-Identifier: Apache-2.0
"""``patchctl rebase``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from patchctl.cli.app import App, command
from patchctl.cli.render import table

if TYPE_CHECKING:
    from patchctl.formats.rebasesession import Session
    from patchctl.stages.rebaseaccept import Accepted

_ACTIONS = {
    "onto": "--onto",
    "resume": "--continue",
    "skip": "--skip",
    "abort": "--abort",
    "status": "--status",
}


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--onto",
            metavar="BASE",
            help="Begin: NAME==VERSION, PATH-OR-URL@COMMIT, or a file NAME-VERSION.tar.gz.",
        ),
        click.option("--dry-run", is_flag=True, help="With --onto: classify the patches and stop."),
        click.option(
            "--continue", "resume", is_flag=True, help="Take the resolved conflict and go on."
        ),
        click.option("--skip", is_flag=True, help="Leave the current patch out and go on."),
        click.option("--abort", is_flag=True, help="End the rebase; nothing has changed."),
        click.option("--status", is_flag=True, help="Show where the rebase is."),
        click.option(
            "--accept",
            is_flag=True,
            help="Write patches and locks; with another option: once all patches are through.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command
@_options
def rebase(
    app: App,
    onto: str | None,
    dry_run: bool,
    resume: bool,
    skip: bool,
    abort: bool,
    status: bool,
    accept: bool,
) -> None:
    """Move the series to another baseline, as a session.

    Nothing changes until it is accepted.

    \b
    patchctl rebase --onto flash-attn==2.8.3.post2 --dry-run   how each patch fits
    patchctl rebase --onto flash-attn==2.8.3.post2             do it; stops at a conflict (exit 4)
    patchctl rebase --continue                                 resolved in build/out/edit, go on
    patchctl rebase --accept                                   write patches, series and locks

    Each patch is merged by git, three ways. Conflicts are git's, in build/out/edit, for your own
    git; resolutions are remembered and used again. No command asks: scripts add --accept to
    --onto, --continue or --skip. A rebase that was killed goes on with --continue.
    """
    given = {"onto": onto, "resume": resume, "skip": skip, "abort": abort, "status": status}
    chosen = [_ACTIONS[name] for name, value in given.items() if value]
    if len(chosen) > 1 or not (chosen or accept):
        said = f"got {' and '.join(chosen)}" if chosen else "got none"
        raise click.UsageError(f"give one of {', '.join(_ACTIONS.values())}, --accept; {said}")
    if dry_run and (onto is None or accept):
        raise click.UsageError("--dry-run goes with --onto, and without --accept")
    if accept and (abort or status):
        raise click.UsageError(f"--accept does not go with {chosen[0]}")
    from patchctl.system.project import exclusive

    if status:
        _show_status(app)
        return
    with exclusive(app.project.out, app.report):
        if abort:
            from patchctl.stages.rebase import abort as end

            end(app.project, app.report)
            app.show("rebase", {"aborted": True}, "aborted; the series is as it was")
        elif dry_run and onto is not None:
            from patchctl.stages.rebase import classify

            plan = classify(app.project, onto, app.report, offline=app.offline)
            app.show("rebase", {"dry_run": True, **_data(plan)}, lambda: _plan_text(plan))
        else:
            _work(app, onto, resume=resume, skip=skip, accept=accept)


def _work(app: App, onto: str | None, *, resume: bool, skip: bool, accept: bool) -> None:
    from patchctl.stages.rebase import at_work, begin, range_diff

    if onto is not None:
        plan = begin(app.project, onto, app.report, offline=app.offline)
        app.report.info(_plan_text(plan))
    if onto is not None or resume or skip:
        with at_work(app.project, app.report) as work:
            if skip:
                work.skip()
            elif resume:
                work.resume()
            else:
                work.run()
            session = work.session
    if accept:
        from patchctl.stages.rebaseaccept import accept as finish

        done = finish(app.project, app.report)
        compared = range_diff(app.project, done.session, patches=app.verbose)
        data = {**_data(done.session), "accepted": _accepted_data(done), "range_diff": compared}
        app.show("rebase", data, lambda: _accepted_text(app, done, compared))
        return
    compared = range_diff(app.project, session, patches=app.verbose)
    app.show(
        "rebase",
        {**_data(session), "accepted": None, "range_diff": compared},
        lambda: app.spelled(
            f"{_summary(session, compared)}\nnothing is written yet; next: patchctl rebase --accept"
        ),
    )


def _show_status(app: App) -> None:
    from patchctl.stages.rebase import load_session

    session = load_session(app.project)
    if session is None:
        app.show("rebase", {"active": False}, "no rebase is under way")
        return
    step = session.current
    if step is None:
        state, next_command = "all patches are through", "patchctl rebase --accept"
    else:
        state = f"at patch {session.position + 1} of {len(session.steps)}: {step.patch}"
        next_command = "patchctl rebase --continue"
    app.show(
        "rebase",
        {"active": True, **_data(session), "next": app.spelled(next_command)},
        lambda: (
            f"rebase of {session.old_source} onto {session.source}: {state}\n"
            f"{_steps(session)}\nnext: {app.spelled(next_command)}"
        ),
    )


def _data(session: Session) -> dict[str, Any]:
    step = session.current
    return {
        "onto": session.onto,
        "from": {"source": session.old_source, "commit": session.old_base},
        "to": {"source": session.source, "commit": session.new_base, "head": session.head},
        "current": None if step is None else step.patch,
        "patches": [
            {
                "patch": step.patch,
                "subject": step.subject,
                "fit": step.fit,
                "note": step.note,
                "outcome": step.outcome,
                "old": step.old,
                "new": step.new or None,
                "conflicts": list(step.conflicts),
            }
            for step in session.steps
        ],
    }


def _plan_text(session: Session) -> str:
    rows = [[step.patch, step.fit, step.note] for step in session.steps]
    counts: dict[str, int] = {}
    for step in session.steps:
        counts[step.fit] = counts.get(step.fit, 0) + 1
    total = ", ".join(f"{count} {fit}" for fit, count in counts.items()) or "no patches"
    return (
        f"{session.old_source} -> {session.source}\n"
        f"{table(['patch', 'fit', 'note'], rows)}\n{total}"
    )


def _steps(session: Session) -> str:
    rows = [
        [step.patch, step.fit, step.outcome, step.new[:12] or "-", ", ".join(step.conflicts)]
        for step in session.steps
    ]
    return table(["patch", "fit", "outcome", "commit", "conflicts"], rows)


def _summary(session: Session, compared: str) -> str:
    parts = [f"{session.old_source} -> {session.source}", _steps(session)]
    if compared:
        parts += ["", "range-diff (old, new):", compared, ""]
    return "\n".join(parts)


def _accepted_data(done: Accepted) -> dict[str, Any]:
    return {
        "head": done.lock.head,
        "baseline_tree": done.lock.baseline.tree,
        "rewritten": list(done.rewritten),
        "unchanged": list(done.unchanged),
        "dropped": list(done.dropped),
    }


def _accepted_text(app: App, done: Accepted, compared: str) -> str:
    project = app.project
    lines = [_summary(done.session, compared)]
    lines += [f"rewritten: {name}" for name in done.rewritten]
    lines += [f"removed:   {name}" for name in done.dropped]
    if done.unchanged:
        count = len(done.unchanged)
        lines.append(f"unchanged: {count} patch file{'s' * (count != 1)}")
    locks = (project.baseline_lock, project.series_lock)
    lines.append(f"locked:    {' and '.join(project.relative(path) for path in locks)}")
    lines.append(f"accepted: head {done.lock.head[:12]}; next: {app.spelled('patchctl replay')}")
    return "\n".join(lines)
