"""Models of Keras, layer by layer: what each computes, and the gradients that it makes."""
