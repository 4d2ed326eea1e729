"""The recurrent cell of the world models."""

import equinox as eqx
import jax
import jax.numpy as jnp

from undistracted.nets import Linear, product


class GRU(eqx.Module):
    """The gated recurrent unit whose reset gate acts on the hidden product: r * (W h + b)."""

    inputs: Linear  # x -> reset, update, candidate
    hidden: Linear  # h -> reset, update, candidate
    merge: bool = eqx.field(static=True)  # both products as one

    def __init__(self, inputs: int, size: int, key, dtype="float32", merge=True):
        k1, k2 = jax.random.split(key)
        self.inputs = Linear(inputs, 3 * size, k1, dtype)
        self.hidden = Linear(size, 3 * size, k2, dtype)
        self.merge = merge

    def merged(self):
        """Both weights as one, [x, h] -> (reset, update, candidate of x, candidate of h): one product a step."""
        wx, wh, bx, bh = self.inputs.weight, self.hidden.weight, self.inputs.bias, self.hidden.bias
        size = wh.shape[0]
        gates, candidate = slice(None, 2 * size), slice(2 * size, None)
        from_x = [wx[:, gates], wx[:, candidate], jnp.zeros((wx.shape[0], size))]
        from_h = [wh[:, gates], jnp.zeros((size, size)), wh[:, candidate]]
        weight = jnp.concatenate([jnp.concatenate(from_x, 1), jnp.concatenate(from_h, 1)])
        return weight, jnp.concatenate([bx[gates] + bh[gates], bx[candidate], bh[candidate]])

    def prepared(self):
        """(x, h) -> h', for the steps of a loop. A GPU waits for one product less where both are merged; a CPU, which
        has no time to spare for the quarter of zeros, is faster without."""
        if not self.merge:
            return self.apart
        weight, bias = self.merged()

        def step(x, h):
            gates = product(jnp.concatenate([x, h], -1), weight, self.inputs.dtype) + bias
            return gru_update(*jnp.split(gates, 4, -1), h)

        return step

    def apart(self, x, h):
        (xr, xu, xn), (hr, hu, hn) = (jnp.split(y, 3, -1) for y in (self.inputs(x), self.hidden(h)))
        return gru_update(xr + hr, xu + hu, xn, hn, h)


@jax.custom_vjp
def gru_update(reset, update, xn, hn, h):
    """The new state from the gates' sums and both parts of the candidate's. Five arrays are kept for its gradient, not
    the nine that would be: loops have to file each of them."""
    return _gru_forward(reset, update, xn, hn, h)[0]


def _gru_forward(reset, update, xn, hn, h):
    reset, update = jax.nn.sigmoid(reset), jax.nn.sigmoid(update)
    new = jnp.tanh(xn + reset * hn)
    return (1 - update) * new + update * h, (reset, update, new, hn, h)


def _gru_backward(kept, gradient):
    reset, update, new, hn, h = kept
    by_new = gradient * (1 - update) * (1 - new**2)
    by_update = gradient * (h - new) * update * (1 - update)
    by_reset = by_new * hn * reset * (1 - reset)
    return by_reset, by_update, by_new, by_new * reset, gradient * update


gru_update.defvjp(_gru_forward, _gru_backward)
