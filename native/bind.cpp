// The only file that knows Python: checks shapes, releases the GIL, calls the drivers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "attention.h"
#include "fp_environment.h"
#include "layout.h"
#include "logit.h"
#include "rows.h"
#include "sampling.h"

namespace nb = nanobind;
using namespace exactlm;

namespace {

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

using Floats1 = nb::ndarray<float, nb::ndim<1>, nb::c_contig>;
using Floats2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig>;
using Codes2 = nb::ndarray<int16_t, nb::ndim<2>, nb::c_contig>;
using Ints1 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig>;
using Ints2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig>;
using Gain = nb::ndarray<const float, nb::ndim<1>, nb::c_contig>;
using Longs1 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig>;
using Words1 = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig>;
using Doubles1 = nb::ndarray<const double, nb::ndim<1>, nb::c_contig>;
using Choices = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig>;
using Multipliers = nb::ndarray<const uint16_t, nb::ndim<1>, nb::c_contig>;

bool is_within(double x, double low, double high) { return low <= x && x <= high; }  // false for NaN

bool is_valid(const LinearWeights& weights) {
  const nb::gil_scoped_release release;
  return has_valid_codes(weights);
}

// Weight matrix over memory that Python owns (usually an mmap).
struct Linear {
  Linear(Bytes codes_in, std::optional<Multipliers> multipliers_in, Gain scales_in, int n, int k)
      : codes(codes_in), multipliers(multipliers_in), scales(scales_in) {
    require(n > 0 && k > 0 && k <= 32768, "need 0 < n and 0 < k <= 32768");
    const size_t rows = static_cast<size_t>((n + kTileRows - 1) / kTileRows * kTileRows);
    const size_t groups = static_cast<size_t>((k + kGroup - 1) / kGroup);
    const size_t wanted = multipliers ? rows * groups * kGroup : rows * static_cast<size_t>((k + 3) / 4) * 8;
    require(codes.size() == wanted && scales.size() == rows,
            "codes or scales do not have the size that n and k ask for");
    require(!multipliers || multipliers->size() == rows * groups,
            "multipliers do not have the size that n and k ask for");
    weights = {n, k, codes.data(), multipliers ? multipliers->data() : nullptr, scales.data()};
    require(is_valid(weights), "a stored code is outside the range of spec/numerics.md 2.3");
  }
  Bytes codes;
  std::optional<Multipliers> multipliers;
  Gain scales;
  LinearWeights weights{};
};

// The tokens of one step; keeps its arrays alive.
struct Step {
  Step(Ints1 first_token_in, Ints1 positions_in, Ints2 page_table_in)
      : first_token(first_token_in), positions(positions_in), page_table(page_table_in) {
    const int sequences = static_cast<int>(page_table.shape(0)), tokens = static_cast<int>(positions.shape(0));
    require(first_token.shape(0) == page_table.shape(0) + 1 && sequences > 0,
            "first_token must have one entry more than there are sequences");
    require(first_token.data()[0] == 0 && first_token.data()[sequences] == tokens,
            "first_token must run from 0 to the number of tokens");
    const int max_pages = static_cast<int>(page_table.shape(1));
    for (int s = 0; s < sequences; ++s)
      require(first_token.data()[s] < first_token.data()[s + 1], "every sequence needs a token");
    for (int s = 0; s < sequences; ++s) {
      for (int t = first_token.data()[s]; t < first_token.data()[s + 1]; ++t) {
        require(positions.data()[t] >= 0 && positions.data()[t] / kPageTokens < max_pages,
                "a position lies outside the page table");
        require(t == first_token.data()[s] || positions.data()[t] == positions.data()[t - 1] + 1,
                "positions of a sequence must follow one another");
      }
    }
    batch = {tokens, sequences, first_token.data(), positions.data(), page_table.data(), max_pages};
  }
  Ints1 first_token, positions;
  Ints2 page_table;
  Batch batch{};
};

// A negative size becomes one that no array has.
size_t to_size(int n) { return static_cast<size_t>(n); }

class Backend {
 public:
  Backend(const std::string& name, int threads) : pool_(threads), scratch_(static_cast<size_t>(threads)) {
    isa_ = find_isa(name);
    require(isa_ != nullptr, "this CPU does not support the instruction set, or it was not compiled in");
  }

  const char* isa() const { return isa_->dot->isa; }
  int num_threads() const { return pool_.num_threads(); }

  void embed(const Linear& table, Longs1 ids, Floats2 x) {
    require(ids.shape(0) <= x.shape(0) && static_cast<int>(x.shape(1)) <= table.weights.k,
            "x does not fit ids and table");
    for (size_t i = 0; i < ids.shape(0); ++i)
      require(ids.data()[i] >= 0 && ids.data()[i] < table.weights.num_outputs,
              "a token id lies outside the vocabulary");
    const nb::gil_scoped_release release;
    embed_rows(pool_, table.weights, ids.data(), static_cast<int>(ids.shape(0)), static_cast<int>(x.shape(1)),
               x.data());
  }

  bool norm_quantise(Floats2 x, std::optional<Floats2> y, std::optional<Ints1> rows, int num_rows, Gain gain,
                     double eps, Codes2 codes, Floats1 scales) {
    const int hidden = static_cast<int>(x.shape(1));
    require(to_size(num_rows) <= codes.shape(0) && to_size(num_rows) <= scales.shape(0) &&
                codes.shape(1) >= x.shape(1) && gain.shape(0) >= x.shape(1),
            "codes, scales or gain are too small");
    require(!y || (y->shape(0) >= (rows ? x.shape(0) : to_size(num_rows)) && y->shape(1) >= x.shape(1)),
            "y does not fit x");
    require(rows ? rows->shape(0) == to_size(num_rows) : to_size(num_rows) <= x.shape(0), "more rows than x has");
    for (size_t i = 0; rows && i < rows->shape(0); ++i)
      require(rows->data()[i] >= 0 && to_size(rows->data()[i]) < x.shape(0), "rows names a row that x does not have");
    const nb::gil_scoped_release release;
    return norm_rows(*isa_, pool_, scratch_, x.data(), y ? y->data() : nullptr, y ? y->shape(1) : 0,
                     rows ? rows->data() : nullptr, num_rows, hidden, gain.data(), eps, codes.data(), codes.shape(1),
                     scales.data()) == kOk;
  }

  void linear(const Linear& w, Codes2 codes, Floats1 scales, int num_rows, Floats2 y) {
    require(
        to_size(num_rows) <= codes.shape(0) && to_size(num_rows) <= scales.shape(0) && to_size(num_rows) <= y.shape(0),
        "more rows than the arrays have");
    require(static_cast<int>(codes.shape(1)) >= w.weights.k &&
                static_cast<int>(y.shape(1)) >= w.weights.num_tiles() * kTileRows,
            "codes or y are too narrow");
    const nb::gil_scoped_release release;
    exactlm::linear(*isa_, pool_, packed_, w.weights, codes.data(), codes.shape(1), scales.data(), num_rows, y.data(),
                    y.shape(1));
  }

  void add_bias(Floats2 y, int num_rows, Gain bias) {
    require(to_size(num_rows) <= y.shape(0) && bias.shape(0) <= y.shape(1), "bias does not fit y");
    const nb::gil_scoped_release release;
    add_bias_rows(*isa_, pool_, y.data(), y.shape(1), num_rows, static_cast<int>(bias.shape(0)), bias.data());
  }

  bool quantise(Floats2 x, int num_rows, int n, Codes2 codes, Floats1 scales) {
    require(
        to_size(num_rows) <= x.shape(0) && to_size(num_rows) <= codes.shape(0) && to_size(num_rows) <= scales.shape(0),
        "more rows than the arrays have");
    require(to_size(n) <= x.shape(1) && to_size(n) <= codes.shape(1), "codes or x are too narrow");
    const nb::gil_scoped_release release;
    return quantise_rows(*isa_, pool_, x.data(), x.shape(1), num_rows, n, codes.data(), codes.shape(1),
                         scales.data()) == kOk;
  }

  bool swiglu_quantise(Floats2 gate_up, int num_rows, int n, Codes2 codes, Floats1 scales) {
    require(to_size(num_rows) <= gate_up.shape(0) && to_size(num_rows) <= codes.shape(0) &&
                to_size(num_rows) <= scales.shape(0),
            "more rows than the arrays have");
    require(to_size(2 * n) <= gate_up.shape(1) && to_size(n) <= codes.shape(1), "codes or gate_up are too narrow");
    const nb::gil_scoped_release release;
    return swiglu_rows(*isa_, pool_, scratch_, gate_up.data(), gate_up.shape(1), num_rows, n, codes.data(),
                       codes.shape(1), scales.data()) == kOk;
  }

  void rope_table(int64_t position, Words1 frequency, float factor, Floats2 cosine, Floats2 sine, int row) {
    require(frequency.shape(0) == cosine.shape(1) && frequency.shape(0) == sine.shape(1) && row >= 0 &&
                to_size(row) < cosine.shape(0) && to_size(row) < sine.shape(0),
            "tables do not fit");
    const FpEnvironment environment;
    const size_t half = frequency.shape(0), at = to_size(row) * half;
    isa_->elementwise->rope_table(static_cast<uint64_t>(position), frequency.data(), static_cast<int>(half), factor,
                                  cosine.data() + at, sine.data() + at);
  }

  bool write_qkv(const Step& step, Floats2 qkv, int num_heads, Floats2 cosine, Floats2 sine, KvCache& cache, int layer,
                 Codes2 query_codes, Floats1 query_scales) {
    const size_t tokens = to_size(step.batch.num_tokens), heads = to_size(num_heads);
    require(tokens <= qkv.shape(0) && to_size((num_heads + 2 * cache.num_heads) * cache.head_dim) <= qkv.shape(1),
            "qkv is too small");
    require(tokens <= cosine.shape(0) && tokens <= sine.shape(0) && to_size(cache.head_dim / 2) == cosine.shape(1) &&
                cosine.shape(1) == sine.shape(1),
            "tables do not fit");
    check_queries(cache, layer, tokens * heads, query_codes, query_scales);
    check_pages(step, cache);
    const nb::gil_scoped_release release;
    return exactlm::write_qkv(*isa_, pool_, step.batch, qkv.data(), qkv.shape(1), num_heads, cosine.data(), sine.data(),
                              cache, layer, query_codes.data(), query_scales.data()) == kOk;
  }

  bool attend(const Step& step, Codes2 query_codes, Floats1 query_scales, int num_heads, const KvCache& cache,
              int layer, float softmax_scale, int window, Floats2 out) {
    const size_t tokens = to_size(step.batch.num_tokens);
    check_queries(cache, layer, tokens * to_size(num_heads), query_codes, query_scales);
    check_pages(step, cache);
    require(tokens <= out.shape(0) && out.shape(1) == to_size(num_heads * cache.head_dim) &&
                num_heads % cache.num_heads == 0,
            "out does not fit the heads");
    const nb::gil_scoped_release release;
    return exactlm::attend(*isa_, pool_, scratch_, step.batch, query_codes.data(), query_scales.data(), num_heads,
                           cache, layer, softmax_scale, window, out.data()) == kOk;
  }

  void argmax(Floats2 x, int num_rows, int n, Choices best) {
    require(to_size(num_rows) <= x.shape(0) && to_size(num_rows) <= best.shape(0) && n > 0 && to_size(n) <= x.shape(1),
            "best or n do not fit x");
    const nb::gil_scoped_release release;
    argmax_rows(*isa_, pool_, x.data(), x.shape(1), num_rows, n, best.data());
  }

  bool log_probabilities(Floats2 x, int num_rows, int n, nb::ndarray<double, nb::ndim<2>, nb::c_contig> out) {
    require(to_size(num_rows) <= x.shape(0) && n > 0 && to_size(n) <= x.shape(1), "more rows or columns than x has");
    require(to_size(num_rows) <= out.shape(0) && to_size(n) == out.shape(1), "out does not fit");
    const nb::gil_scoped_release release;
    return log_probability_rows(*isa_, pool_, x.data(), x.shape(1), num_rows, n, out.data()) == kOk;
  }

  bool adjust(Floats1 x, int n, Longs1 bias_ids, Gain bias, Longs1 history_ids, Ints1 counts, double repetition,
              double frequency, double presence) {
    require(n > 0 && to_size(n) <= x.shape(0), "n does not fit x");
    require(bias_ids.shape(0) == bias.shape(0) && history_ids.shape(0) == counts.shape(0),
            "an id needs a bias, or a count");
    for (const Longs1& ids : {bias_ids, history_ids})
      for (size_t i = 0; i < ids.shape(0); ++i)
        require(ids.data()[i] >= 0 && ids.data()[i] < n, "an id lies outside the first n values of x");
    for (size_t i = 0; i < counts.shape(0); ++i) require(counts.data()[i] >= 0, "a count is negative");
    require(is_within(repetition, 0.001, 1000) && is_within(frequency, -2, 2) && is_within(presence, -2, 2),
            "a penalty is outside the range of spec/sampling.md 1.3");
    const nb::gil_scoped_release release;
    return adjust_row(*isa_, x.data(), n,
                      {bias_ids.data(), bias.data(), bias.shape(0), history_ids.data(), counts.data(), counts.shape(0),
                       repetition, frequency, presence}) == kOk;
  }

  void sample(Floats2 x, int num_rows, int n, Doubles1 temperature, Longs1 min_weight, Longs1 top_k, Longs1 top_p_q40,
              Words1 u, Choices chosen) {
    const size_t rows = to_size(num_rows);
    require(rows <= x.shape(0) && n > 0 && n <= kMaxSampled && to_size(n) <= x.shape(1), "num_rows or n do not fit x");
    require(rows <= temperature.shape(0) && rows <= min_weight.shape(0) && rows <= top_k.shape(0) &&
                rows <= top_p_q40.shape(0) && rows <= u.shape(0) && rows <= chosen.shape(0),
            "a row lacks a parameter");
    for (size_t r = 0; r < rows; ++r) {
      const double t = temperature.data()[r];
      const int64_t w = min_weight.data()[r], p = top_p_q40.data()[r];
      require((t == 0 || is_within(t, 0.001, 1000)) && top_k.data()[r] >= 0 && w >= 0 && w <= kOneQ40 && p >= 0 &&
                  p <= kOneQ40,
              "a parameter is outside the range of spec/sampling.md 1.3");
    }
    const nb::gil_scoped_release release;
    sample_rows(*isa_, pool_, scratch_, x.data(), x.shape(1), num_rows, n,
                {temperature.data(), min_weight.data(), top_k.data(), top_p_q40.data(), u.data()}, chosen.data());
  }

  // One token's codes and scales, all heads of a layer: keys [Hk, d], key scales [Hk], values, value scales.
  void read_kv(const KvCache& cache, int layer, int page, int slot, Codes2 keys, Floats1 key_scales, Codes2 values,
               Floats1 value_scales) {
    const size_t heads = to_size(cache.num_heads), d = to_size(cache.head_dim);
    require(layer >= 0 && layer < cache.num_layers && page >= 0 && page < cache.num_pages && slot >= 0 &&
                slot < kPageTokens,
            "no such token");
    require(keys.shape(0) == heads && keys.shape(1) == d && values.shape(0) == heads && values.shape(1) == d &&
                key_scales.shape(0) == heads && value_scales.shape(0) == heads,
            "arrays do not fit the heads");
    for (int h = 0; h < cache.num_heads; ++h) {
      const size_t at = to_size(h) * d;
      load_key(cache.keys(layer, page, h), cache.head_dim, cache.padded_dim, cache.limbs, slot, keys.data() + at);
      load_value(cache.values(layer, page, h), cache.head_dim, cache.padded_dim, cache.limbs, slot, values.data() + at);
      key_scales.data()[h] = cache.key_scales(layer, page, h)[slot];
      value_scales.data()[h] = cache.value_scales(layer, page, h)[slot];
    }
  }

 private:
  static void check_queries(const KvCache& cache, int layer, size_t rows, const Codes2& codes, const Floats1& scales) {
    require(layer >= 0 && layer < cache.num_layers, "no such layer");
    require(rows <= codes.shape(0) && rows <= scales.shape(0) && codes.shape(1) == to_size(cache.padded_dim),
            "query arrays do not fit the heads");
  }
  static void check_pages(const Step& step, const KvCache& cache) {
    const Batch& b = step.batch;
    for (int s = 0; s < b.num_sequences; ++s) {
      const int pages = b.positions[b.first_token[s + 1] - 1] / kPageTokens + 1;
      for (int p = 0; p < pages; ++p) {
        const int page = b.page_table[s * b.max_pages + p];
        require(page >= 0 && page < cache.num_pages, "the page table names a page that does not exist");
      }
    }
  }

  const Isa* isa_;
  Pool pool_;
  std::vector<Scratch> scratch_;
  Scratch packed_;
};

}  // namespace

NB_MODULE(_native, m) {
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.def("compiled_isas", &compiled_isas);
  m.def("supported_isas", &supported_isas);
  nb::class_<Linear>(m, "Linear")
      .def(nb::init<Bytes, std::optional<Multipliers>, Gain, int, int>(), nb::arg("codes"),
           nb::arg("multipliers").none(), nb::arg("scales"), nb::arg("n"), nb::arg("k"));
  nb::class_<KvCache>(m, "KvCache")
      .def(nb::init<int, int, int, int, int>(), nb::arg("num_layers"), nb::arg("num_pages"), nb::arg("num_heads"),
           nb::arg("head_dim"), nb::arg("limbs"))
      .def_ro("num_pages", &KvCache::num_pages)
      .def_prop_ro("page_bytes", &KvCache::page_bytes);
  nb::class_<Step>(m, "Step").def(nb::init<Ints1, Ints1, Ints2>(), nb::arg("first_token"), nb::arg("positions"),
                                  nb::arg("page_table"));
  nb::class_<Backend>(m, "Backend")
      .def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("threads"))
      .def_prop_ro("isa", &Backend::isa)
      .def_prop_ro("num_threads", &Backend::num_threads)
      .def("embed", &Backend::embed)
      .def("norm_quantise", &Backend::norm_quantise, nb::arg("x"), nb::arg("y").none(), nb::arg("rows").none(),
           nb::arg("num_rows"), nb::arg("gain"), nb::arg("eps"), nb::arg("codes"), nb::arg("scales"))
      .def("linear", &Backend::linear)
      .def("add_bias", &Backend::add_bias)
      .def("quantise", &Backend::quantise)
      .def("swiglu_quantise", &Backend::swiglu_quantise)
      .def("rope_table", &Backend::rope_table)
      .def("write_qkv", &Backend::write_qkv)
      .def("attend", &Backend::attend)
      .def("argmax", &Backend::argmax)
      .def("log_probabilities", &Backend::log_probabilities)
      .def("adjust", &Backend::adjust)
      .def("sample", &Backend::sample)
      .def("read_kv", &Backend::read_kv);
}
