"""Any-to-any masked modelling over many modalities."""
