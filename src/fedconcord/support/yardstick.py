"""The method that stands where none is named, and that others are measured against: the plain average."""

YARDSTICK = "fedavg"
