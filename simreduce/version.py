"""The version, in a module that imports nothing, so that every layer can import it."""

__version__ = "0.1.0"
