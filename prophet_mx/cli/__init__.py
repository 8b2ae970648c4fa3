"""The command ``prophet-mx``: a module for each subcommand. Imports what the subcommands run, never the adapter for MXNet."""
