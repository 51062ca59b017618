"""Wikipedia from its own dumps: pages out of the XML, text out of the markup."""
