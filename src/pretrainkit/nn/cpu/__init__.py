"""What is made for CPUs, in torch's own operators; each part says what it earns there."""
