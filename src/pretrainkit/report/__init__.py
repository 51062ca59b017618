"""One HTML page of a run, and its curves as SVG. Drawn by our own small code: no scripts, no network, no torch."""
