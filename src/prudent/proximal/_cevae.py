"""CEVAE: causal effect variational autoencoder (Louizos et al., 2017), with Gaussian treatment and outcome.

A latent z is inferred from proxies, treatment and outcome, q(z | x, t, y), such that p(z) p(x | z) p(t | z) p(y | t, z)
explains the data; then E[Y | do(a)] is the mean of E[y | a, z] over the units' z. Proxies (W, V) and context are x. The
paper's auxiliary networks q(t | x) and q(y | x, t), which serve units whose outcome is not known, are not needed here.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from prudent._checks import check_count
from prudent._progress import Progress
from prudent.cmr._arrays import Matrix, Scaler
from prudent.cmr._folds import held_out_splits
from prudent.cmr._product_kernel import block_scaler
from prudent.proximal._direct import DirectEffect, Proxies, column_blocks

if TYPE_CHECKING:
    from prudent.nn import NetworkSpec, TrainConfig

# Draws of z per unit when effects are averaged.
N_DRAWS = 5


class CEVAE(DirectEffect):
    """Dose response from a latent-variable model fitted by variational inference.

    It has no guarantee: where the model is not right, or its posterior is poor, the effect is biased.

    Parameters
    ----------
    n_latent : int, default=10
        Dimension of z.
    network : NetworkSpec, optional
        Networks of all conditional laws. Default: :class:`prudent.nn.MLPSpec` with widths 64, 64.
    n_networks : int, default=3
        Models that are averaged, each stopped on its own held-out rows.
    train : TrainConfig, optional
        Training.
    show_progress : bool, optional
        Progress bars on standard error; by default only on a terminal.
    """

    def __init__(
        self,
        *,
        n_latent: int = 10,
        network: "NetworkSpec | None" = None,
        n_networks: int = 3,
        train: "TrainConfig | None" = None,
        show_progress: bool | None = None,
    ):
        self.n_latent = n_latent
        self.network = network
        self.n_networks = n_networks
        self.train = train
        self.show_progress = show_progress

    def _fit(self, data: Proxies, seed: int) -> None:
        import jax

        from prudent.nn import MLPSpec, TrainConfig, apply_in_blocks, fit_stack, stack_networks
        from prudent.proximal._latent_model import Encoder, LatentModel, negative_bound

        check_count("n_latent", self.n_latent)
        check_count("n_networks", self.n_networks)
        rng = np.random.default_rng(seed)
        parts = [data.outcome_proxy, data.treatment_proxy, data.context]
        x = np.hstack(parts)
        scalers = {
            "x": block_scaler(x, column_blocks(parts)),
            "t": block_scaler(data.treatment, [range(data.treatment.shape[1])]),
            "y": Scaler.of(data.outcome),
        }
        raw = {"x": x, "t": data.treatment, "y": data.outcome}
        arrays = {name: scaler.forward(raw[name]) for name, scaler in scalers.items()}
        splits = held_out_splits(np.arange(len(x)), self.n_networks, rng)
        stack_seed, draw_seed = (int(s) for s in rng.integers(2**31 - 2, size=2))
        n_x, n_t, n_y = (arrays[name].shape[1] for name in ("x", "t", "y"))
        self.network_, self.sizes_ = self.network or MLPSpec((64, 64)), (n_x, n_t, n_y)
        with Progress(self.show_progress) as progress:
            models, _ = fit_stack(
                stack_networks(
                    lambda key: LatentModel.of(self.network_, n_x, n_t, n_y, self.n_latent, key=key),
                    len(splits),
                    jax.random.key(stack_seed),
                ),
                negative_bound,
                arrays,
                [train for train, _ in splits],
                [held for _, held in splits],
                self.train or TrainConfig(batch_size=128, max_steps=2000, evaluate_every=80),
                seed=stack_seed,
                progress=progress,
                label="latent model",
            )
        mean, scale = apply_in_blocks(Encoder(models), np.hstack([arrays["x"], arrays["t"], arrays["y"]]))
        noise = np.random.default_rng(draw_seed).standard_normal((N_DRAWS, *mean.shape))
        # (models, draws x units, latent)
        self.latent_ = np.concatenate(list(mean + scale * noise), axis=1).astype(np.float32)
        self.models_, self.treatment_scaler_, self.outcome_scaler_ = models, scalers["t"], scalers["y"]

    def _effect(self, treatment: Matrix) -> Matrix:
        from prudent.proximal._latent_model import mean_outcomes

        return self.outcome_scaler_.back(
            mean_outcomes(self.models_, self.treatment_scaler_.forward(treatment), self.latent_)
        )

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        import equinox as eqx
        import jax

        from prudent.nn import spec_to_json

        leaves = jax.tree.leaves(eqx.filter(self.models_, eqx.is_array))
        arrays = {f"model.{number:03d}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
        for name, scaler in (("t", self.treatment_scaler_), ("y", self.outcome_scaler_)):
            arrays |= {f"{name}.mean": scaler.mean, f"{name}.scale": scaler.scale}
        record = {"network": spec_to_json(self.network_), "sizes": [int(size) for size in self.sizes_]}
        return record, {**arrays, "latent": self.latent_}

    def _restore(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        import equinox as eqx
        import jax
        import jax.numpy as jnp

        from prudent.nn import spec_from_json, stack_networks
        from prudent.proximal._latent_model import LatentModel

        n_x, n_t, n_y = record["sizes"]
        self.network_, self.sizes_ = spec_from_json(record["network"]), (n_x, n_t, n_y)
        self.latent_ = arrays["latent"]
        self.treatment_scaler_, self.outcome_scaler_ = (
            Scaler(arrays[f"{name}.mean"], arrays[f"{name}.scale"]) for name in ("t", "y")
        )
        skeleton = stack_networks(
            lambda key: LatentModel.of(self.network_, n_x, n_t, n_y, self.n_latent, key=key),
            len(self.latent_),
            jax.random.key(0),
        )
        leaves, tree = jax.tree.flatten(eqx.filter(skeleton, eqx.is_array))
        saved = [arrays[name] for name in sorted(arrays) if name.startswith("model.")]
        if [leaf.shape for leaf in leaves] != [array.shape for array in saved]:
            raise ValueError(f"weights of {len(saved)} arrays do not fit the model, which has {len(leaves)}")
        filled = jax.tree.unflatten(tree, [jnp.asarray(array) for array in saved])
        self.models_ = eqx.combine(filled, skeleton)
