// Replays spec/vectors/*.vec, made from the NumPy reference by tools/make_vectors.py (which describes the format),
// through every instruction set.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

#include "attention.h"
#include "check.h"
#include "layout.h"
#include "logit.h"
#include "sampling.h"

namespace exactlm::test {
namespace {

constexpr int kThreads = 2;

size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Array {
  uint32_t dtype = 0;
  std::vector<size_t> shape;
  std::vector<uint64_t> elements;  // bit patterns

  template <class T>
  std::vector<T> as() const {
    std::vector<T> out;
    for (const uint64_t bits : elements) {
      if constexpr (std::is_same_v<T, float>) {
        out.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
      } else if constexpr (std::is_same_v<T, double>) {
        out.push_back(std::bit_cast<double>(bits));
      } else {
        out.push_back(static_cast<T>(bits));
      }
    }
    return out;
  }
};

class Case {
 public:
  std::map<std::string, Array> arrays;

  const Array& operator[](const std::string& name) const {
    const auto found = arrays.find(name);
    if (found == arrays.end()) throw std::runtime_error("no array " + name);
    return found->second;
  }
  bool has(const std::string& name) const { return arrays.count(name) > 0; }
  template <class T>
  std::vector<T> get(const std::string& name) const {
    return (*this)[name].as<T>();
  }
  int integer(const std::string& name) const { return get<int32_t>(name).at(0); }
};

class Reader {
 public:
  explicit Reader(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    if (bytes_.size() < 4 || bytes_.substr(0, 4) != "EXV1") throw std::runtime_error("not a file of vectors");
    next_ = 4;
  }

  bool at_end() const { return next_ == bytes_.size(); }

  Case read_case() {
    constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 8, 8, 4, 8};
    Case result;
    for (uint64_t left = number(4); left > 0; --left) {
      std::string name;
      for (uint64_t i = number(4); i > 0; --i) name += static_cast<char>(number(1));
      Array& array = result.arrays[name];
      array.dtype = static_cast<uint32_t>(number(4));
      if (array.dtype >= std::size(kSizes)) throw std::runtime_error("unknown dtype of " + name);
      size_t count = 1;
      for (uint64_t i = number(4); i > 0; --i) count *= array.shape.emplace_back(number(8));
      if (count > bytes_.size()) throw std::runtime_error("more elements than bytes in " + name);
      for (size_t i = 0; i < count; ++i) array.elements.push_back(number(kSizes[array.dtype]));
    }
    return result;
  }

 private:
  uint64_t number(size_t num_bytes) {
    if (bytes_.size() - next_ < num_bytes) throw std::runtime_error("the file ends early");
    uint64_t value = 0;
    for (size_t i = 0; i < num_bytes; ++i) value |= uint64_t{static_cast<uint8_t>(bytes_[next_ + i])} << (8 * i);
    next_ += num_bytes;
    return value;
  }

  std::string bytes_;
  size_t next_ = 0;
};

bool same(const std::vector<float>& found, const std::vector<float>& expected) {
  return found.size() == expected.size() && same_bits(found.data(), expected.data(), found.size());
}

// Codes and scales of the rows of a case, by an operation on one row.
template <class RowOperation>
bool same_codes(const Case& c, const RowOperation& operation) {
  const size_t rows = c["out.codes"].shape[0], width = c["out.codes"].shape[1];
  std::vector<int16_t> codes(rows * width, 99);
  std::vector<float> scales(rows, -1.0f);
  for (size_t r = 0; r < rows; ++r)
    if (operation(r, codes.data() + r * width, static_cast<int>(width), &scales[r]) != kOk) return false;
  return codes == c.get<int16_t>("out.codes") && same(scales, c.get<float>("out.scales"));
}

bool replay_quantise(const Isa& isa, const Case& c) {
  const std::vector<float> x = c.get<float>("x");
  const int n = c.integer("n");
  return same_codes(c, [&](size_t r, int16_t* codes, int width, float* scale) {
    return isa.elementwise->quantise(x.data() + r * at(n), n, codes, width, scale);
  });
}

bool replay_norm_quantise(const Isa& isa, const Case& c) {
  std::vector<float> x = c.get<float>("x");
  const std::vector<float> y = c.get<float>("y"), gain = c.get<float>("gain");
  const double eps = c.get<double>("eps").at(0);
  std::vector<float> scratch(gain.size());
  const bool is_same = same_codes(c, [&](size_t r, int16_t* codes, int width, float* scale) {
    const size_t row = r * gain.size();
    return isa.elementwise->norm_quantise(x.data() + row, y.data() + row, gain.data(), static_cast<int>(gain.size()),
                                          eps, codes, width, scale, scratch.data());
  });
  return is_same && same(x, c.get<float>("out.x"));
}

bool replay_swiglu_quantise(const Isa& isa, const Case& c) {
  const std::vector<float> gate_up = c.get<float>("gate_up");
  const int n = c.integer("n");
  std::vector<float> scratch(at(n));
  return same_codes(c, [&](size_t r, int16_t* codes, int width, float* scale) {
    const float* gate = gate_up.data() + r * at(2 * n);
    return isa.elementwise->swiglu_quantise(gate, gate + n, n, codes, width, scale, scratch.data());
  });
}

bool replay_linear(const Isa& isa, const Case& c) {
  const std::vector<int16_t> codes = c.get<int16_t>("codes");
  const std::vector<float> s_x = c.get<float>("scales"), s_w = c.get<float>("s_w");
  const std::vector<uint8_t> w = c.get<uint8_t>("w");
  const bool is_w8 = c.has("multipliers");
  const std::vector<uint16_t> multipliers = is_w8 ? c.get<uint16_t>("multipliers") : std::vector<uint16_t>();
  const int n = c.integer("n"), k = c.integer("k"), rows = static_cast<int>(s_x.size());
  const int tiles = static_cast<int>(s_w.size()) / kTileRows;
  const LinearWeights weights = {n, k, w.data(), is_w8 ? multipliers.data() : nullptr, s_w.data()};
  std::vector<uint8_t> packed(isa.dot->packed_bytes(k) * s_x.size());
  std::vector<float> y(s_x.size() * s_w.size()), x(at(n) * at(k)), outputs;
  isa.dot->pack(codes.data(), rows, c["codes"].shape[1], k, packed.data());
  if (is_w8) {
    isa.dot->linear_w8(packed.data(), s_x.data(), rows, k, w.data(), multipliers.data(), s_w.data(), tiles, y.data(),
                       s_w.size());
  } else {
    isa.dot->linear_w16(packed.data(), s_x.data(), rows, k, w.data(), s_w.data(), tiles, y.data(), s_w.size());
  }
  for (size_t m = 0; m < s_x.size(); ++m)
    outputs.insert(outputs.end(), y.data() + m * s_w.size(), y.data() + m * s_w.size() + at(n));
  for (int row = 0; row < n; ++row) embed(weights, row, k, x.data() + at(row) * at(k));
  return same(outputs, c.get<float>("out.y")) && same(x, c.get<float>("out.embedding"));
}

bool replay_rope_table(const Isa& isa, const Case& c) {
  const std::vector<int32_t> positions = c.get<int32_t>("positions");
  const std::vector<uint64_t> frequency = c.get<uint64_t>("frequency");
  const float factor = c.get<float>("factor").at(0);
  std::vector<float> cosine(positions.size() * frequency.size()), sine(cosine.size());
  for (size_t r = 0; r < positions.size(); ++r)
    isa.elementwise->rope_table(static_cast<uint64_t>(positions[r]), frequency.data(),
                                static_cast<int>(frequency.size()), factor, cosine.data() + r * frequency.size(),
                                sine.data() + r * frequency.size());
  return same(cosine, c.get<float>("out.cosine")) && same(sine, c.get<float>("out.sine"));
}

// The slots that hold tokens, against arrays [pages, 32, Hk, d] of codes and [pages, 32, Hk] of scales.
bool same_cache(const Case& c, const KvCache& cache, const Batch& batch) {
  const std::vector<int16_t> keys = c.get<int16_t>("out.keys"), values = c.get<int16_t>("out.values");
  const std::vector<float> s_k = c.get<float>("out.key_scales"), s_v = c.get<float>("out.value_scales");
  const int d = cache.head_dim;
  std::vector<int16_t> key(at(d)), value(at(d));
  bool is_same = true;
  for (int s = 0; s < batch.num_sequences; ++s) {
    for (int t = batch.first_token[s]; t < batch.first_token[s + 1]; ++t) {
      const int slot = batch.positions[t] % kPageTokens;
      const int page = batch.page_table[s * batch.max_pages + batch.positions[t] / kPageTokens];
      for (int h = 0; h < cache.num_heads; ++h) {
        const size_t head = at((page * kPageTokens + slot) * cache.num_heads + h);
        load_key(cache.keys(0, page, h), d, cache.padded_dim, cache.limbs, slot, key.data());
        load_value(cache.values(0, page, h), d, cache.padded_dim, cache.limbs, slot, value.data());
        is_same = is_same && std::equal(key.begin(), key.end(), keys.data() + head * at(d)) &&
                  std::equal(value.begin(), value.end(), values.data() + head * at(d)) &&
                  same_bits(cache.key_scales(0, page, h) + slot, &s_k[head], 1) &&
                  same_bits(cache.value_scales(0, page, h) + slot, &s_v[head], 1);
      }
    }
  }
  return is_same;
}

bool replay_attention(const Isa& isa, const Case& c) {
  const std::vector<int32_t> first = c.get<int32_t>("first_token"), positions = c.get<int32_t>("positions"),
                             page_table = c.get<int32_t>("page_table"), shape = c.get<int32_t>("shape");
  const std::vector<float> qkv = c.get<float>("qkv"), cosine = c.get<float>("cosine"), sine = c.get<float>("sine");
  const int heads = shape.at(0), kv_heads = shape.at(1), d = shape.at(2), limbs = shape.at(3), window = shape.at(4);
  const Batch batch = {static_cast<int>(positions.size()),
                       static_cast<int>(first.size()) - 1,
                       first.data(),
                       positions.data(),
                       page_table.data(),
                       static_cast<int>(c["page_table"].shape[1])};
  Pool pool(kThreads);
  std::vector<Scratch> scratch(kThreads);
  KvCache cache(1, shape.at(5), kv_heads, d, limbs);
  std::vector<int16_t> codes(c["out.query_codes"].elements.size(), 99);
  std::vector<float> scales(positions.size() * at(heads), -1.0f), out(scales.size() * at(d), -1.0f);
  return write_qkv(isa, pool, batch, qkv.data(), at((heads + 2 * kv_heads) * d), heads, cosine.data(), sine.data(),
                   cache, 0, codes.data(), scales.data()) == kOk &&
         attend(isa, pool, scratch, batch, codes.data(), scales.data(), heads, cache, 0,
                c.get<float>("softmax_scale").at(0), window, out.data()) == kOk &&
         codes == c.get<int16_t>("out.query_codes") && same(scales, c.get<float>("out.query_scales")) &&
         same_cache(c, cache, batch) && same(out, c.get<float>("out.attended"));
}

bool replay_logprob(const Isa& isa, const Case& c) {
  const std::vector<float> logits = c.get<float>("logits");
  const std::vector<double> expected = c.get<double>("out.logprobs");
  const int rows = static_cast<int>(c["logits"].shape[0]), width = static_cast<int>(c["logits"].shape[1]);
  Pool pool(kThreads);
  std::vector<int64_t> best(at(rows), -7);
  std::vector<double> found(expected.size(), 1.0);
  argmax_rows(isa, pool, logits.data(), at(width), rows, width, best.data());
  return log_probability_rows(isa, pool, logits.data(), at(width), rows, width, found.data()) == kOk &&
         best == c.get<int64_t>("out.best") &&
         std::equal(found.begin(), found.end(), expected.begin(), expected.end(),
                    [](double x, double y) { return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y); });
}

bool replay_adjust(const Isa& isa, const Case& c) {
  std::vector<float> x = c.get<float>("x");
  const std::vector<int64_t> bias_ids = c.get<int64_t>("bias_ids"), history_ids = c.get<int64_t>("history_ids");
  const std::vector<float> bias = c.get<float>("bias");
  const std::vector<int32_t> counts = c.get<int32_t>("counts");
  const std::vector<double> penalties = c.get<double>("penalties");
  const Status status = adjust_row(isa, x.data(), static_cast<int>(x.size()),
                                   {bias_ids.data(), bias.data(), bias.size(), history_ids.data(), counts.data(),
                                    counts.size(), penalties.at(0), penalties.at(1), penalties.at(2)});
  return status == kOk && same(x, c.get<float>("out.x"));
}

bool replay_sampling(const Isa& isa, const Case& c) {
  const std::vector<float> x = c.get<float>("x");
  const std::vector<double> temperature = c.get<double>("temperature");
  const std::vector<int64_t> min_weight = c.get<int64_t>("min_weight"), top_k = c.get<int64_t>("top_k"),
                             top_p_q40 = c.get<int64_t>("top_p_q40");
  const std::vector<uint64_t> u = c.get<uint64_t>("u");
  Pool pool(kThreads);
  std::vector<Scratch> scratch(kThreads);
  std::vector<int64_t> chosen(u.size(), -7);
  sample_rows(isa, pool, scratch, x.data(), c["x"].shape[1], static_cast<int>(u.size()),
              static_cast<int>(c["x"].shape[1]),
              {temperature.data(), min_weight.data(), top_k.data(), top_p_q40.data(), u.data()}, chosen.data());
  return chosen == c.get<int64_t>("out.chosen");
}

using Replay = bool (*)(const Isa&, const Case&);
const std::map<std::string, Replay> kReplays = {{"quantise", replay_quantise},
                                                {"norm_quantise", replay_norm_quantise},
                                                {"swiglu_quantise", replay_swiglu_quantise},
                                                {"linear", replay_linear},
                                                {"rope_table", replay_rope_table},
                                                {"attention", replay_attention},
                                                {"logprob", replay_logprob},
                                                {"adjust", replay_adjust},
                                                {"sampling", replay_sampling}};

// A wrong bit in any output must be noticed. Of the cache, 3/5 is the first slot of page 3, which holds a token.
void check_sensitivity(const std::string& path, Replay replay, Case& c) {
  for (auto& [name, array] : c.arrays) {
    if (name.substr(0, 4) != "out.") continue;
    const bool is_cache = path.find("attention") != std::string::npos && array.shape[0] == 5;
    uint64_t& element = is_cache ? array.elements[array.elements.size() / 5 * 3] : array.elements.back();
    element ^= 1;
    CHECK(!replay(*isas()[0], c), path + " with a wrong bit in " + name);
    element ^= 1;
  }
}

void replay_file(const std::string& path, Replay replay) {
  Reader reader(path);
  int count = 0;
  for (; !reader.at_end(); ++count) {
    Case c = reader.read_case();
    for (const Isa* isa : isas()) CHECK(replay(*isa, c), path + " case " + std::to_string(count) + " " + isa->dot->isa);
    if (count == 0) check_sensitivity(path, replay, c);
  }
  CHECK(count > 0, path + " has no cases");
}

}  // namespace

void test_vectors(const std::string& directory) {
  size_t num_files = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".vec") continue;
    const auto replay = kReplays.find(entry.path().stem().string());
    CHECK(replay != kReplays.end(), entry.path().string() + " is not replayed");
    if (replay == kReplays.end()) continue;
    ++num_files;
    try {
      replay_file(entry.path().string(), replay->second);
    } catch (const std::exception& exception) {
      CHECK(false, entry.path().string() + ": " + exception.what());
    }
  }
  CHECK(num_files == kReplays.size(), "files missing in " + directory);
}

}  // namespace exactlm::test
