"""A trial where it runs: its life without Ray (`run`) and the Ray actor that leads it (`actor`)."""
