"""Operations for GPUs."""
