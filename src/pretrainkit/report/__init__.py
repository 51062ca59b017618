"""HTML pages of runs and corpora, and curves as SVG. A page loads nothing from the network. Imports no torch."""
