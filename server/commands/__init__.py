"""What ``callgate`` can do besides serving, one file per verb. Each is imported only when it is asked for."""
