"""The experiments of Amortised Learning by Wake-Sleep, one folder a section."""
