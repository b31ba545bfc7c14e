"""The user's side: the functions of the library, the command line, the local page."""
