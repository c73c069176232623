"""The documentation site: pages of docs/, and what is made for them when it is built."""
