"""Each token mixer once more, from the paper's equation, in NumPy with a loop for every index that is not a vector.

An oracle takes x (b, n, c), the mixer's tensors by name, the grid and the options, and returns (b, n, c).
"""

import math

import numpy as np

A = np.ndarray
Tensors = dict[str, A]


def softmax(values: A) -> A:
    weights = np.array([math.exp(v - max(values)) for v in values])
    return weights / sum(weights)


def sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v))


def gelu_value(v: float, form: str) -> float:
    if form == "tanh":
        return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    return 0.5 * v * (1 + math.erf(v / math.sqrt(2)))


def dense(vector: A, p: Tensors, name: str) -> A:
    """W v + b for the layer `name`, where it has a bias."""
    weight = p[f"{name}.weight"]
    out = np.array([sum(weight[o, i] * vector[i] for i in range(len(vector))) for o in range(len(weight))])
    return out + p.get(f"{name}.bias", 0.0)


def along_tokens(x: A, weight: A, bias: A | None) -> A:
    """y[b, m, c] = sum_n weight[m, n] x[b, n, c] + bias[m]."""
    y = np.zeros((x.shape[0], weight.shape[0], x.shape[2]))
    for b in range(x.shape[0]):
        for m in range(weight.shape[0]):
            for n in range(x.shape[1]):
                y[b, m] += weight[m, n] * x[b, n]
            if bias is not None:
                y[b, m] += bias[m]
    return y


def each_token(x: A, function) -> A:
    return np.array([[function(token) for token in image] for image in x])


def elementwise(x: A, function) -> A:
    return np.vectorize(function)(x)


def layer_norm(vector: A, weight: A, bias: A, eps: float) -> A:
    mean = sum(vector) / len(vector)
    variance = sum((v - mean) ** 2 for v in vector) / len(vector)
    return np.array(
        [(v - mean) / math.sqrt(variance + eps) * w + s for v, w, s in zip(vector, weight, bias, strict=True)]
    )


def norm_over_tokens(x: A, p: Tensors) -> A:
    y = np.empty_like(x)
    for b in range(x.shape[0]):
        for c in range(x.shape[2]):
            y[b, :, c] = layer_norm(x[b, :, c], p["norm.weight"], p["norm.bias"], 1e-6)
    return y


# --- one a mixer ------------------------------------------------------------------------------------------------------


def identity(x: A, p: Tensors, grid) -> A:
    return x


def random(x: A, p: Tensors, grid) -> A:
    return along_tokens(x, p["weight"], None)


def linear(x: A, p: Tensors, grid, bias=True) -> A:
    return along_tokens(x, p["weight"], p["bias"] if bias else None)


def pool(x: A, p: Tensors, grid, size=3) -> A:
    rows, columns = grid
    y = np.empty_like(x)
    for b in range(x.shape[0]):
        for r in range(rows):
            for k in range(columns):
                near = [
                    x[b, i * columns + j]
                    for i in range(rows)
                    for j in range(columns)
                    if abs(i - r) <= size // 2 and abs(j - k) <= size // 2
                ]
                y[b, r * columns + k] = sum(near) / len(near) - x[b, r * columns + k]
    return y


ACTS = {
    "gelu": lambda v: gelu_value(v, "erf"),
    "gelu_tanh": lambda v: gelu_value(v, "tanh"),
    "identity": lambda v: v,
    "relu": lambda v: max(v, 0.0),
    "silu": lambda v: v * sigmoid(v),
}


def token_mlp(x: A, p: Tensors, grid, hidden=None, act="gelu", gated=False) -> A:
    inner = along_tokens(x, p["w1"], p["b1"])
    half = inner.shape[1] // 2
    inner = inner[:, :half] * elementwise(inner[:, half:], ACTS[act]) if gated else elementwise(inner, ACTS[act])
    return along_tokens(inner, p["w2"], p["b2"])


def feed_forward(x: A, p: Tensors, grid, ratio=4.0, act="gelu") -> A:
    assert p["w1"].shape[0] == round(ratio * x.shape[1])
    return token_mlp(norm_over_tokens(x, p), p, grid, act=act)


def _attend(queries: A, keys: A, values: A, scale: float, causal: bool = False) -> A:
    """One head of one image: (n, d), (n, d), (n, e) → (n, e)."""
    out = []
    for i, query in enumerate(queries):
        seen = range(i + 1) if causal else range(len(keys))
        weights = softmax(np.array([scale * sum(query * keys[j]) for j in seen]))
        out.append(sum(w * values[j] for w, j in zip(weights, seen, strict=True)))
    return np.array(out)


def attention(x: A, p: Tensors, grid, heads=1, qkv_bias=False, out_bias=False) -> A:
    c, d = x.shape[2], x.shape[2] // heads
    y = np.empty_like(x)
    for b, image in enumerate(each_token(x, lambda t: dense(t, p, "qkv"))):
        for h in range(heads):
            q, k, v = (image[:, part * c + h * d : part * c + (h + 1) * d] for part in range(3))
            y[b, :, h * d : (h + 1) * d] = _attend(q, k, v, 1 / math.sqrt(d))
    return each_token(y, lambda t: dense(t, p, "out"))


def simple_attention(x: A, p: Tensors, grid, scale=False) -> A:
    return np.array([_attend(image, image, image, 1 / math.sqrt(x.shape[2]) if scale else 1.0) for image in x])


def feature_attention(x: A, p: Tensors, grid, qkv_bias=False) -> A:
    n = x.shape[1]
    qkv = along_tokens(norm_over_tokens(x, p), p["qkv"], p.get("qkv_bias"))
    y = np.array([_attend(i[:n].T, i[n : 2 * n].T, i[2 * n :].T, 1 / math.sqrt(n)).T for i in qkv])
    return along_tokens(y, p["out"], p["out_bias"])


def double_norm(logits: A, eps: float) -> A:
    """(n, s): softmax over n for each slot, then each token divided by eps + its sum over the slots."""
    b = np.array([softmax(logits[:, s]) for s in range(logits.shape[1])]).T
    return np.array([row / (eps + sum(row)) for row in b])


def _external(logits: A, norm: str, eps: float | None) -> A:
    return double_norm(logits, eps or 0.0) if norm == "double" else np.array([softmax(row) for row in logits])


def external_attention(x: A, p: Tensors, grid, memory=64, norm="double", eps=None, query=True, out=False) -> A:
    images = []
    for image in x:
        queries = [dense(t, p, "query") for t in image] if query else image
        weights = _external(np.array([dense(q, p, "key") for q in queries]), norm, eps)
        read = [dense(w, p, "value") for w in weights]
        images.append([dense(r, p, "out") for r in read] if out else read)
    return np.array(images)


def multihead_external_attention(
    x: A, p: Tensors, grid, heads=1, coef=4, memory=None, norm="double", eps=None, bias=False
) -> A:
    d = x.shape[2] // heads
    images = []
    for image in x:
        wide = np.array([dense(t, p, "expand") for t in image])
        read = np.empty_like(wide)
        for h in range(heads * coef):
            head = slice(h * d, (h + 1) * d)
            weights = _external(np.array([dense(z, p, "key") for z in wide[:, head]]), norm, eps)
            read[:, head] = [dense(w, p, "value") for w in weights]
        images.append([dense(r, p, "out") for r in read])
    return np.array(images)


def spatial_gate(
    x: A,
    p: Tensors,
    grid,
    ratio=2.0,
    split=True,
    gate="multiply",
    tiny_attention=0,
    toeplitz=False,
    causal=False,
    norm_eps=1e-5,
    gelu="erf",
    gate_act="identity",
    init="normal",
    out_bias=False,
) -> A:
    n = x.shape[1]
    weight = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            weight[i, j] = p["weight"][n - 1 + j - i] if toeplitz else p["weight"][i, j]
            if causal and j > i:
                weight[i, j] = 0
    z = elementwise(each_token(x, lambda t: dense(t, p, "fc1")), lambda v: gelu_value(v, gelu))
    half = z.shape[2] // 2
    u, v = (z[:, :, :half], z[:, :, half:]) if split else (z, z)
    v = each_token(v, lambda t: layer_norm(t, p["norm.weight"], p["norm.bias"], norm_eps))
    v = along_tokens(v, weight, p["bias"])
    if tiny_attention:
        for b, image in enumerate(each_token(x, lambda t: dense(t, p, "tiny.qkv"))):
            q, k, w = (image[:, i * tiny_attention : (i + 1) * tiny_attention] for i in range(3))
            attended = _attend(q, k, w, 1 / math.sqrt(tiny_attention), causal)
            v[b] += np.array([dense(t, p, "tiny.out") for t in attended])
    v = np.tanh(v) if gate_act == "tanh" else v
    gated = {"multiply": u * v, "add": u + v, "linear": v}[gate]
    return each_token(gated, lambda t: dense(t, p, "fc2"))


def _depthwise(image: A, kernels: A) -> A:
    """(h, w, c) with kernels (c, k, k), zero padding, cross-correlation."""
    h, w, _ = image.shape
    k = kernels.shape[1]
    y = np.zeros_like(image)
    for r in range(h):
        for s in range(w):
            for i in range(k):
                for j in range(k):
                    a, b = r + i - k // 2, s + j - k // 2
                    if 0 <= a < h and 0 <= b < w:
                        y[r, s] += kernels[:, i, j] * image[a, b]
    return y


def separable_conv(x: A, p: Tensors, grid, ratio=2.0, kernel=7, act="star_relu") -> A:
    def star_relu(v: float) -> float:
        return float(p["act.scale"][0]) * max(v, 0.0) ** 2 + float(p["act.shift"][0])

    acts = {**ACTS, "star_relu": star_relu}
    wide = elementwise(each_token(x, lambda t: dense(t, p, "fc1")), acts[act])
    maps = [_depthwise(image.reshape(*grid, -1), p["conv.weight"][:, 0]).reshape(x.shape[1], -1) for image in wide]
    return each_token(np.array(maps), lambda t: dense(t, p, "fc2"))


def _batch_norm(value: A, p: Tensors, name: str, s: int) -> A:
    spread = math.sqrt(p[f"{name}.running_var"][s] + 1e-5)
    return (value - p[f"{name}.running_mean"][s]) / spread * p[f"{name}.weight"][s] + p[f"{name}.bias"][s]


def repmlp(x: A, p: Tensors, grid, partition=None, sharesets=None, kernels=(1, 3), reduce=4, order="window") -> A:
    h, w = partition or grid
    sets = p["weight"].shape[0]
    corners = [(top, left) for top in range(0, grid[0], h) for left in range(0, grid[1], w)]
    groups = x.shape[2] // sets
    y = np.zeros_like(x)
    for b, image in enumerate(x):
        mean = sum(image) / len(image)
        hidden = np.array([max(v, 0.0) for v in dense(mean, p, "gate.fc1")])
        gate = [sigmoid(v) for v in dense(hidden, p, "gate.fc2")]
        rows = []
        for top, left in corners:
            places = [(top + i) * grid[1] + left + j for i in range(h) for j in range(w)]
            for group in range(groups):
                row = []
                for s in range(sets):
                    window = image[places, group * sets + s]
                    mixed = np.array(
                        [sum(p["weight"][s, o, i] * window[i] for i in range(h * w)) for o in range(h * w)]
                    )
                    total = _batch_norm(mixed, p, "norm", s)
                    for i in range(len(kernels)):
                        kernel = p[f"local.{i}.conv.weight"][s : s + 1, 0]
                        local = _depthwise(window.reshape(h, w, 1), kernel).reshape(-1)
                        total = total + _batch_norm(local, p, f"local.{i}.norm", s)
                    row.append(total)
                rows.append(row)
        for place, (top, left) in enumerate(corners):
            places = [(top + i) * grid[1] + left + j for i in range(h) for j in range(w)]
            for c in range(x.shape[2]):
                group, s = divmod(c, sets)
                row = group * len(corners) + place if order == "official" else place * groups + group
                y[b, places, c] = gate[c] * rows[row][s]
    return y
