"""HTTP/1.1 as the router speaks it to engines: one path, made for many short waits on few connections."""
