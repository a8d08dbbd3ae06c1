"""How the shared network is run for many clients at once: one forward and one backward pass.

``shared_pass`` says what a pass is. ``autograd`` takes it for any network, ``dense`` in closed
form, ``inner_products`` with the products of all gradients.
"""
