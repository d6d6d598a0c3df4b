#include "check.h"
#include "protocol/tensor.h"
#include "weights_models.h"

using check::contains;
using dllm::weights::ModelError;
using models::Made;
using models::gguf;
using models::kF32;
using models::raw;
using models::tensor;
using models::text;

namespace {

dllm::weights::Header header_of(const std::string& data) {
  models::Memory memory(data);
  return dllm::weights::read_header(memory, "m.gguf");
}

std::string refused(const std::string& data) {
  return check::thrown<ModelError>([&] { header_of(data); });
}

std::string refused_parts(const std::vector<std::string>& parts) {
  return check::thrown<ModelError>([&] { models::opened(parts); });
}

std::string key(const std::string& name, std::uint32_t type, const std::string& value) {
  return text(name) + raw(type) + value;
}

std::string array(std::uint32_t element, std::uint64_t count, const std::string& values) {
  return raw(element) + raw(count) + values;
}

// Of a chunk of a hole.
const std::string kHash(32, '7');

}  // namespace

TEST(tensors_are_found_behind_any_metadata) {
  const std::string vocabulary = text("a") + text("") + text(std::string(3000, 'b'));
  const std::string data =
      gguf({{"one", kF32, {3, 2}, std::string(24, 'x')}, tensor("two", "1234567")},
           {key("u8", 0, "\1"), key("f64", 12, raw(1.5)), key("text", 8, text("hello")),
            key("tokens", 9, array(8, 3, vocabulary)), key("scores", 9, array(6, 2, raw(0ULL)))});
  const auto found = header_of(data).tensors;
  CHECK(found.size() == 2);
  CHECK(found[0].key == (dllm::weights::TensorKey{"one", kF32, {3, 2, 1, 1}, 24}));
  CHECK(data.substr(found[0].offset, 24) == std::string(24, 'x'));
  CHECK(data.substr(found[1].offset, 7) == "1234567" && found[1].key.size_bytes == 7);
}

TEST(quants_have_the_sizes_of_ggml) {
  const auto* const q4k = dllm::tensor_type(12);
  CHECK(q4k != nullptr && q4k->block == 256 && q4k->block_bytes == 144);
  const std::string data = gguf({{"w", 12, {256, 2}, std::string(288, 'w')}});
  CHECK(header_of(data).tensors[0].key.size_bytes == 288);
  CHECK(contains(refused(gguf({{"w", 12, {255}, std::string(288, 'w')}})), "rows of 255 in Q4_K"));
}

TEST(a_type_nobody_knows_reaches_to_the_next) {
  const auto found = header_of(gguf({{"odd", 4711, {5}, "12345"}, tensor("next", "1")})).tensors;
  CHECK(!found[0].type_known && found[0].key.size_bytes == 32);
  CHECK(found[1].type_known);
}

TEST(an_alignment_of_its_own) {
  const std::string wide = key("general.alignment", 4, raw<std::uint32_t>(64));
  std::string data = gguf({tensor("one", "123")}, {wide});
  const std::size_t end = data.size();
  data.insert(data.find("123"), (64 - end % 64 + 32) % 64, '\0');
  const auto found = header_of(data).tensors;
  CHECK(found[0].offset % 64 == 0 && data.substr(found[0].offset, 3) == "123");
  const std::string odd = key("general.alignment", 4, raw<std::uint32_t>(3));
  CHECK(contains(refused(gguf({}, {odd})), "no power of two"));
  const std::string none = key("general.alignment", 4, raw<std::uint32_t>(0));
  CHECK(contains(refused(gguf({}, {none})), "no power of two"));
}

TEST(every_shorter_file_is_refused) {
  const std::string data = gguf({tensor("one", std::string(40, '1')), tensor("two", "1")},
                                {key("tokens", 9, array(8, 2, text("ab") + text("c")))});
  // The padding behind the last tensor may be missing.
  for (std::size_t size = 0; size < data.size() - 31; ++size) {
    CHECK(!refused(data.substr(0, size)).empty());
  }
  CHECK(refused(data.substr(0, data.size() - 31)).empty());
}

TEST(a_file_that_shrinks_while_it_is_read_is_refused) {
  const std::string data =
      gguf({tensor("one", "1")}, {key("text", 8, text(std::string(1 << 19, 't')))});
  models::Memory memory(data);
  memory.before_read([](models::Memory& self, std::uint64_t offset) {
    if (offset > 0) self.data().resize(100);
  });
  CHECK(contains(check::thrown<ModelError>([&] { dllm::weights::read_header(memory, "m"); }),
                 "truncated"));
}

TEST(claims_beyond_all_bounds_are_refused) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const std::string begin = "GGUF" + raw<std::uint32_t>(3);
  CHECK(contains(refused(begin + raw(kHuge) + raw<std::uint64_t>(0)), "tensors"));
  CHECK(contains(refused(begin + raw<std::uint64_t>(0) + raw(kHuge)), "metadata"));
  CHECK(contains(refused("GGUF" + raw<std::uint32_t>(9) + raw(kHuge) + raw(kHuge)), "version 9"));
  CHECK(contains(refused(std::string(100, 'x')), "not a GGUF"));
  CHECK(contains(refused(gguf({}, {key("t", 8, raw(kHuge))})), "truncated"));
  CHECK(contains(refused(gguf({}, {key("t", 9, array(6, kHuge, ""))})), "truncated"));
  CHECK(contains(refused(gguf({}, {key("t", 9, array(8, kHuge, ""))})), "truncated"));
  CHECK(contains(refused(gguf({}, {key("t", 9, array(9, 1, ""))})), "array of type 9"));
  CHECK(contains(refused(gguf({}, {key("t", 77, "")})), "value of type 77"));
  CHECK(contains(refused(gguf({}, {raw(kHuge) + std::string(20, 'x')})), "name in it"));
}

TEST(tensors_that_cannot_be_are_refused) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 62;
  CHECK(contains(refused(gguf({tensor("one", "1"), tensor("one", "2")})), "appears twice"));
  CHECK(contains(refused(gguf({{"w", kF32, {kHuge, 4}, ""}})), "too large"));
  CHECK(contains(refused(gguf({{"w", kF32, {kHuge}, ""}})), "too large"));
  CHECK(contains(refused(gguf({{"w", kF32, {1, 1, 1, 1, 1}, "1234"}})), "5 dimensions"));
  CHECK(contains(refused(gguf({{"w", kF32, {100}, "1234"}})), "ends inside w"));
  CHECK(contains(refused(gguf({{"w", kF32, {100}, "1234"}, tensor("v", "1")})), "overlaps"));
  CHECK(contains(refused(gguf({tensor(std::string(64, 'n'), "1")})), "name in it"));
}

TEST(empty_tensors_lie_where_others_begin) {
  const auto found = header_of(gguf({tensor("one", "12"), tensor("none", ""), tensor("two", "3")}));
  CHECK(found.tensors.size() == 3 && found.tensors[1].key.size_bytes == 0);
}

TEST(holes_of_a_sparse_file) {
  const std::vector<Made> tensors = {tensor("a", "1"), tensor("b", std::string(99, '2')),
                                     tensor("none", ""), tensor("c", "3")};
  const auto found = header_of(models::sparse_gguf(tensors, {"a", "c"}));
  CHECK(found.is_sparse && !header_of(gguf(tensors)).is_sparse);
  for (const auto& place : found.tensors) CHECK(place.is_hole == (place.key.name == "b"));
  const auto& hole = *std::ranges::find_if(found.tensors, &dllm::weights::TensorPlace::is_hole);
  const std::string data(99, '2');
  CHECK(hole.chunks == std::vector{dllm::weights::blake3(
                           {reinterpret_cast<const std::uint8_t*>(data.data()), data.size()})});
}

TEST(a_sparse_file_that_does_not_say_what_it_lacks_is_corrupt) {
  using models::numbers_key;
  const std::vector<Made> tensors = {tensor("a", "1"), tensor("b", "2")};
  const std::string list = models::list_key(tensors);
  const auto said = [&](const std::vector<std::uint64_t>& kept, const std::string& hashes) {
    return refused(gguf(tensors, {list, numbers_key(dllm::weights::kSparseKept, kept),
                                  models::hashes_key(hashes)}));
  };
  const auto b_is_a_hole = header_of(
      gguf(tensors, {list, numbers_key(dllm::weights::kSparseKept, {0, 1}),
                     models::hashes_key(kHash)}));
  CHECK(!b_is_a_hole.tensors[0].is_hole && b_is_a_hole.tensors[1].is_hole);
  CHECK(contains(said({0, 1}, ""), "what b holds"));
  CHECK(contains(said({0, 1}, kHash + kHash), "more hashes than holes"));
  CHECK(contains(said({0, 1}, kHash + "8"), "33 numbers"));
  CHECK(contains(said({0}, kHash), "where its holes are"));
  CHECK(contains(said({1, 0}, kHash), "where its holes are"));
  std::string claims = numbers_key(dllm::weights::kSparseKept, {});
  claims.replace(claims.size() - 8, 8, raw<std::uint64_t>(1U << 24));
  CHECK(contains(refused(gguf(tensors, {claims})), "16777216 numbers"));
  // One of the two alone marks it, too.
  const std::string chunks = models::hashes_key(kHash);
  CHECK(contains(refused(gguf(tensors, {list, chunks})), "b holds"));
  const std::string other = models::uint16_key(dllm::weights::kSparseKept, 1);
  CHECK(contains(refused(gguf(tensors, {other})), "no list"));
  const std::vector<Made> unknown = {{"w", 99, {4}, "1234"}};
  CHECK(contains(refused(gguf(unknown,
                              {models::list_key(unknown),
                               numbers_key(dllm::weights::kSparseKept, {}),
                               models::hashes_key(kHash)})),
                 "what w holds"));
}

TEST(a_record_of_holes_is_of_one_list_of_tensors) {
  using models::numbers_key;
  const std::vector<Made> made = {tensor("a", "1"), tensor("b", "2")};
  const std::vector<std::string> keys = {models::list_key(made),
                                         numbers_key(dllm::weights::kSparseKept, {0, 1}),
                                         models::hashes_key(kHash)};
  CHECK(header_of(gguf(made, keys)).is_sparse);
  // A quantised copy, one in another order, and one that somebody renamed keep the metadata.
  const std::vector<std::vector<Made>> copies = {
      {{"a", kF32, {1}, "1111"}, tensor("b", "2")}, {tensor("b", "2"), tensor("a", "1")},
      {tensor("a", "1"), tensor("c", "2")}};
  for (const std::vector<Made>& copy : copies) {
    CHECK(contains(refused(gguf(copy, keys)), "of other tensors than it lists"));
  }
  CHECK(contains(refused(gguf(made, {keys[1], keys[2]})), "of other tensors than it lists"));
}

TEST(parts_of_a_sparse_model_are_all_sparse) {
  const std::string sparse = models::sparse_gguf({tensor("a", "1"), tensor("b", "2")}, {"a"});
  CHECK(models::opened({sparse}).is_sparse());
  const auto part = [](const std::vector<Made>& tensors, std::uint16_t number, bool is_sparse) {
    std::vector<std::string> keys = {models::uint16_key("split.no", number),
                                     models::uint16_key("split.count", 2)};
    if (is_sparse) {
      keys.push_back(models::list_key(tensors));
      keys.push_back(models::numbers_key(dllm::weights::kSparseKept, {0, 1}));
    }
    return gguf(tensors, keys);
  };
  const auto said = [&](bool first, bool second) {
    return check::thrown<ModelError>([&] {
      models::opened({part({tensor("a", "1")}, 0, first), part({tensor("b", "2")}, 1, second)});
    });
  };
  CHECK(said(true, true).empty() && said(false, false).empty());
  CHECK(contains(said(true, false), "some are sparse, and others do not say so"));
  CHECK(contains(said(false, true), "some are sparse, and others do not say so"));
}

TEST(parts_of_a_split_model) {
  const std::vector<std::string> parts = dllm::weights::part_paths("/m/big-00002-of-00003.gguf");
  CHECK(parts.size() == 3 && parts[0] == "/m/big-00001-of-00003.gguf");
  CHECK(parts[2] == "/m/big-00003-of-00003.gguf");
  CHECK(dllm::weights::part_paths("/m/BIG-00001-of-00002.GGUF")[1] == "/m/BIG-00002-of-00002.GGUF");
  for (const std::string path :
       {"/m/big.gguf", "/m/big-00004-of-00003.gguf", "/m/-00001-of-0002.gguf",
        "/m/big-00000-of-00003.gguf", "/m/big-1of-00003.gguf", "/m/-00001-of-00002.gguf",
        "/m/big-99999-of-99999.gguf"}) {
    CHECK(dllm::weights::part_paths(path) == std::vector<std::string>{path});
  }
}

TEST(parts_are_one_model) {
  const std::string first = gguf({tensor("one", "1")}, {models::split_key(0, 2)});
  const std::string second = gguf({tensor("two", "22")}, {models::split_key(1, 2)});
  // split_key is two keys: let the file say so.
  const auto two_keys = [](std::string data) {
    data[16] = 2;
    return data;
  };
  const auto files = models::opened({two_keys(first), two_keys(second)});
  CHECK(files.tensors().size() == 2 && files.tensor_bytes() == 3);
  CHECK(files.tensors()[1].file == 1 && files.tensors()[1].key.name == "two");
  CHECK(contains(refused_parts({two_keys(second), two_keys(first)}), "part 2 of 2"));
  CHECK(contains(refused_parts({two_keys(first)}), "part 1 of 2"));
  const std::string again = gguf({tensor("one", "1")}, {models::split_key(1, 2)});
  CHECK(contains(refused_parts({two_keys(first), two_keys(again)}), "another part holds too"));
}

RUN_TESTS()
