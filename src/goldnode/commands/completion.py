"""Command `goldnode completion`."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option(
    "--node", is_flag=True, help="Print that of goldnode-node, the program that runs on nodes."
)
@click.pass_context
def completion(ctx: click.Context, shell: str, node: bool) -> None:
    """Print the completion script of a shell.

    Add one line to the start-up file of your shell:

    \b
    bash, ~/.bashrc:                      eval "$(goldnode completion bash)"
    zsh, ~/.zshrc:                        eval "$(goldnode completion zsh)"
    fish, ~/.config/fish/config.fish:     goldnode completion fish | source
    """
    if node:
        from goldnode.nodepackage.completion import script as of_shell
        from goldnode.nodepackage.manpages import of_node

        click.echo(of_shell(shell, "goldnode-node", of_node()), nl=False)
        return
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    # The choices of the argument are shells that click knows; the type of its table says otherwise.
    if script is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(script(ctx.find_root().command, {}, "goldnode", "_GOLDNODE_COMPLETE").source())
