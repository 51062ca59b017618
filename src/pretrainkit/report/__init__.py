"""HTML pages of runs and corpora, and curves as SVG. A page needs no other files. Imports no torch."""
