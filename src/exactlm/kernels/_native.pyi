import numpy as np
from numpy.typing import NDArray

from exactlm.kernels.api import F32, F64, I16, I32, I64, U64

PAGE_TOKENS: int

def compiled_isas() -> list[str]: ...
def supported_isas() -> list[str]: ...

class Linear:
    def __init__(
        self, codes: NDArray[np.uint8], multipliers: NDArray[np.uint16] | None, scales: F32, n: int, k: int
    ) -> None: ...

class KvCache:
    def __init__(self, num_layers: int, num_pages: int, num_heads: int, head_dim: int, limbs: int) -> None: ...
    @property
    def num_pages(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...

class Step:
    def __init__(self, first_token: I32, positions: I32, page_table: I32) -> None: ...

class Backend:
    def __init__(self, isa: str, threads: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    def embed(self, table: Linear, ids: I64, x: F32) -> None: ...
    def norm_quantise(
        self, x: F32, y: F32 | None, rows: I32 | None, num_rows: int, gain: F32, eps: float, codes: I16, scales: F32
    ) -> bool: ...
    def linear(self, weight: Linear, codes: I16, scales: F32, num_rows: int, y: F32) -> None: ...
    def add_bias(self, y: F32, num_rows: int, bias: F32) -> None: ...
    def quantise(self, x: F32, num_rows: int, n: int, codes: I16, scales: F32) -> bool: ...
    def swiglu_quantise(self, gate_up: F32, num_rows: int, n: int, codes: I16, scales: F32) -> bool: ...
    def rope_table(
        self, position: int, frequency: NDArray[np.uint64], factor: float, cosine: F32, sine: F32, row: int
    ) -> None: ...
    def write_qkv(
        self,
        step: Step,
        qkv: F32,
        num_heads: int,
        cosine: F32,
        sine: F32,
        cache: KvCache,
        layer: int,
        query_codes: I16,
        query_scales: F32,
    ) -> bool: ...
    def attend(
        self,
        step: Step,
        query_codes: I16,
        query_scales: F32,
        num_heads: int,
        cache: KvCache,
        layer: int,
        softmax_scale: float,
        window: int,
        out: F32,
    ) -> bool: ...
    def argmax(self, x: F32, num_rows: int, n: int, best: I64) -> None: ...
    def log_probabilities(self, x: F32, num_rows: int, n: int, out: F64) -> bool: ...
    def adjust(
        self,
        x: F32,
        n: int,
        bias_ids: I64,
        bias: F32,
        history_ids: I64,
        counts: I32,
        repetition: float,
        frequency: float,
        presence: float,
    ) -> bool: ...
    def sample(
        self,
        x: F32,
        num_rows: int,
        n: int,
        temperature: F64,
        min_weight: I64,
        top_k: I64,
        top_p_q40: I64,
        u: U64,
        chosen: I64,
    ) -> None: ...
    def read_kv(
        self,
        cache: KvCache,
        layer: int,
        page: int,
        slot: int,
        keys: I16,
        key_scales: F32,
        values: I16,
        value_scales: F32,
    ) -> None: ...
