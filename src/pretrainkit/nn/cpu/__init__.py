"""Operations for CPUs, made of torch's own operators; each module documents what it saves."""
