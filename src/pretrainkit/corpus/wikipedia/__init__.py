"""Documents from Wikipedia dumps: parsing of the XML, and conversion of wikitext to plain text."""
