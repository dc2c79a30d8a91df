"""One check a module: a battery's measurements against data sheets, siblings and the past."""
