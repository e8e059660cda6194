"""The choice of GPU and image, or the reason why none fits."""
