#include <fcntl.h>
#include <sys/stat.h>

#include "check.h"
#include "weights/hash_cache.h"
#include "weights/resident_weights.h"
#include "weights_models.h"

using check::TempDir;
using dllm::weights::FileId;
using dllm::weights::HashCache;
using dllm::weights::kChunkBytes;
using dllm::weights::TableBuilder;
using dllm::weights::TableSoFar;
using models::gguf;
using models::noise;
using models::tensor;

namespace {

constexpr std::size_t kLong = 2 * kChunkBytes + 100;

std::string model() {
  return gguf({tensor("long", noise(1, kLong)), tensor("empty", ""), tensor("short", "hello"),
               tensor("even", noise(2, kChunkBytes))});
}

dllm::weights::Bytes bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

TableSoFar built(const dllm::weights::ModelFiles& files, TableSoFar so_far = {}) {
  TableBuilder builder(files, std::move(so_far));
  while (builder.step()) {
  }
  CHECK(builder.done() && builder.done_bytes() == files.tensor_bytes());
  return builder.so_far();
}

const std::vector<FileId> kIds = {{"/m/model.gguf", 1000, 77, 5}};

std::uint32_t mode_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
}

}  // namespace

TEST(sums_of_every_tensor) {
  std::vector<models::Memory*> memories;
  const auto files = models::opened({model()}, &memories);
  const std::size_t opening = memories[0]->reads();
  const TableSoFar table = built(files);
  CHECK(memories[0]->reads() - opening == 6);
  CHECK(table.whole.size() == 4);
  const std::string data = noise(1, kLong);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string bytes[] = {data, "", "hello", noise(2, kChunkBytes)};
    CHECK(table.whole[i].chunks.size() == dllm::weights::chunks_in(bytes[i].size()));
    CHECK(table.whole[i].blake3() == dllm::weights::blake3(bytes_of(bytes[i])));
  }
  CHECK(table.whole[2].fnv1a == 0xa430d84680aabd0b);
}

TEST(a_table_goes_on_from_any_step) {
  const auto files = models::opened({model()});
  const auto whole = built(files).whole;
  for (int steps = 0; steps < 6; ++steps) {
    TableBuilder first(files);
    for (int i = 0; i < steps; ++i) first.step();
    const auto kept = dllm::weights::decode_hash_cache(
        dllm::weights::encode_hash_cache(kIds, files, first.so_far()), kIds, files);
    CHECK(kept.has_value());
    TableBuilder second(files, *kept);
    CHECK(second.done_bytes() == first.done_bytes());
    CHECK(built(files, *kept).whole == whole);
  }
}

TEST(a_file_that_ends_inside_a_tensor_has_no_table) {
  std::vector<models::Memory*> memories;
  const auto files = models::opened({model()}, &memories);
  memories[0]->data().resize(kChunkBytes);
  TableBuilder builder(files);
  CHECK(check::contains(check::thrown<dllm::weights::ModelError>([&] {
                          while (builder.step()) {
                          }
                        }),
                        "ends inside it"));
}

TEST(damaged_or_foreign_caches_are_as_good_as_none) {
  const auto files = models::opened({model()});
  const std::string data = dllm::weights::encode_hash_cache(kIds, files, built(files));
  CHECK(dllm::weights::decode_hash_cache(data, kIds, files).has_value());
  for (std::size_t at = 0; at < data.size(); at += 7) {
    std::string damaged = data;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    CHECK(!dllm::weights::decode_hash_cache(damaged, kIds, files).has_value());
    CHECK(!dllm::weights::decode_hash_cache(data.substr(0, at), kIds, files).has_value());
  }
  for (const FileId& other :
       {FileId{"/m/other.gguf", 1000, 77, 5}, FileId{"/m/model.gguf", 1001, 77, 5},
        FileId{"/m/model.gguf", 1000, 78, 5}, FileId{"/m/model.gguf", 1000, 77, 6}}) {
    CHECK(!dllm::weights::decode_hash_cache(data, {other}, files).has_value());
  }
  const auto renamed =
      models::opened({gguf({tensor("long", noise(1, kLong)), tensor("empty", ""),
                            tensor("shart", "hello"), tensor("even", noise(2, kChunkBytes))})});
  CHECK(!dllm::weights::decode_hash_cache(data, kIds, renamed).has_value());
}

TEST(a_cache_is_private_and_replaced_whole) {
  const TempDir folder;
  const HashCache cache(folder / "cache/tensors", kIds);
  const auto files = models::opened({model()});
  CHECK(!cache.load(files).has_value());
  cache.save(files, {});
  cache.save(files, built(files));
  CHECK(cache.load(files)->whole == built(files).whole);
  CHECK(mode_of(cache.path()) == 0600 && mode_of(folder / "cache/tensors") == 0700);
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "cache/tensors"), {}) == 1);
  check::spill(cache.path(), "garbage");
  CHECK(!cache.load(files).has_value());
  const HashCache others(folder.path(), {{"/m/other.gguf"}});
  CHECK(others.path() != HashCache(folder.path(), kIds).path());
}

TEST(files_on_disk_are_told_from_later_ones) {
  const TempDir folder;
  const std::string path = folder / "m.gguf";
  check::spill(path, model());
  const auto open = dllm::weights::open_model(path);
  open.check_unchanged();
  CHECK(open.ids().size() == 1 && open.ids()[0].path == path && open.ids()[0].inode != 0);
  CHECK(open.ids()[0].size_bytes == model().size());
  const timespec times[2] = {{1000, 0}, {1000, 5}};
  ::utimensat(AT_FDCWD, path.c_str(), times, 0);
  CHECK(check::contains(check::thrown<dllm::weights::ModelError>([&] { open.check_unchanged(); }),
                        "was changed"));
  CHECK(dllm::weights::open_model(path).ids()[0].mtime_ns == 1'000'000'000'005);
  CHECK(!check::thrown<dllm::weights::ModelError>([&] {
           dllm::weights::open_model(folder.path());
         }).empty());
  CHECK(!check::thrown<dllm::weights::ModelError>([&] {
           dllm::weights::open_model(folder / "no");
         }).empty());
}

TEST(a_home_knows_what_is_kept_of_its_files) {
  const TempDir folder;
  ::setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  const std::string path = folder / "m.gguf";
  check::spill(path, model());
  const auto open = dllm::weights::open_model(path);
  const TableSoFar table = built(open.files);
  const auto key = open.files.tensors()[0].key;
  dllm::weights::ResidentWeights before, after;
  before.open(path);
  CHECK(before.find(key).size() == 1 && !before.find(key, table.whole[0].fnv1a).has_value());
  HashCache(dllm::weights::hash_cache_directory(), open.ids()).save(open.files, table);
  after.open(path);
  CHECK(after.find(key, table.whole[0].fnv1a)->sums->chunks == table.whole[0].chunks);
  CHECK(!after.find(key, table.whole[0].fnv1a + 1).has_value());
  CHECK(after.list().size() == 4 && after.list()[0].fnv1a != 0);
}

TEST(fresh_files_are_not_remembered) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::vector<FileId> ids = {{"a", 1, 100 * kSecond, 1}, {"b", 1, 200 * kSecond, 2}};
  CHECK(dllm::weights::too_fresh(ids, 200 * kSecond));
  CHECK(dllm::weights::too_fresh(ids, 201 * kSecond));
  CHECK(dllm::weights::too_fresh(ids, 101 * kSecond));
  CHECK(!dllm::weights::too_fresh(ids, 203 * kSecond));
  CHECK(!dllm::weights::too_fresh(ids, 150 * kSecond));
}

TEST(what_fits_twice) {
  CHECK(dllm::weights::fits_twice(1 << 20));
  CHECK(!dllm::weights::fits_twice(std::uint64_t{1} << 60));
}

RUN_TESTS()
