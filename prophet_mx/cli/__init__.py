"""The command ``prophet-mx``: a module for each subcommand."""
