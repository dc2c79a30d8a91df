"""One check a module: a battery's measurements against data sheets, this node's past and other nodes."""
