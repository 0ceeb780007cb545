"""What clients may take of the server: bytes of memory, connections, open files; and a log of those turned away.

The server's two doors import this, and the service that they share; it knows the types, the settings and the log alone.
"""
