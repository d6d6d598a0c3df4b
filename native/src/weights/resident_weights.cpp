#include "resident_weights.h"

#include "hash_cache.h"
#include "posix.h"

namespace dllm::weights {

namespace {

const std::vector<Resident> kNone;

}  // namespace

void ResidentWeights::add(ModelFiles files, std::vector<TensorSums> sums) {
  models_.push_back(std::make_unique<Model>(Model{std::move(files), std::move(sums)}));
  const Model& model = *models_.back();
  for (std::size_t i = 0; i < model.files.tensors().size(); ++i) {
    const TensorPlace& place = model.files.tensors()[i];
    if (place.is_hole) {
      holes_.emplace(place.key.name, &place);
      continue;
    }
    const TensorSums* const known = i < model.sums.size() ? &model.sums[i] : nullptr;
    by_key_[place.key].push_back({&model.files, &place, known});
  }
}

void ResidentWeights::open(const std::string& path) {
  OpenModel model = open_model(path);
  const auto kept = HashCache(hash_cache_directory(), model.ids()).load(model.files);
  if (model.files.is_sparse()) {
    sparse_.insert(sparse_.end(), model.on_disk.begin(), model.on_disk.end());
  }
  add(std::move(model.files), kept ? kept->whole : std::vector<TensorSums>());
}

void ResidentWeights::open_sparse(const std::string& path) {
  open(path);
  if (models_.back()->files.is_sparse()) return;
  throw ModelError(path + " is not sparse");
}

const TensorPlace* ResidentWeights::hole(std::string_view name) const {
  const auto found = holes_.find(name);
  return found == holes_.end() ? nullptr : found->second;
}

const std::vector<Resident>& ResidentWeights::find(const TensorKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? kNone : found->second;
}

std::optional<Resident> ResidentWeights::find(const TensorKey& key, std::uint64_t fnv1a) const {
  for (const Resident& resident : find(key)) {
    if (resident.sums != nullptr && resident.sums->fnv1a == fnv1a) return resident;
  }
  return std::nullopt;
}

void ResidentWeights::check_sparse() const {
  for (const FileSource* const file : sparse_) {
    if (file->is_in_place()) continue;
    throw ModelError(
        file->id().path +
        " was changed after its holes were read: launch again, so that they are known");
  }
}

std::vector<Listed> ResidentWeights::list() const {
  std::vector<Listed> listed;
  for (const auto& [key, residents] : by_key_) {
    for (const Resident& resident : residents) {
      listed.push_back({key, resident.sums != nullptr ? resident.sums->fnv1a : 0});
    }
  }
  return listed;
}

void open_models(ResidentWeights& home, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    try {
      home.open(path);
    } catch (const ModelError& error) {
      log(Level::kWarning, std::string(error.what()) + "; its weights will not come from here");
    }
  }
}

bool read_chunk(const Resident& resident, std::uint64_t chunk, std::vector<std::uint8_t>& buffer) {
  const TensorPlace& place = *resident.place;
  buffer.resize(chunk_bytes(place.key.size_bytes, chunk));
  Source& source = resident.files->source(place);
  const std::uint64_t offset = place.offset + chunk * kChunkBytes;
  try {
    if (source.read(offset, buffer) < buffer.size()) return false;
  } catch (const ModelError&) {
    return false;
  }
  source.forget(offset, buffer.size());
  return true;
}

}  // namespace dllm::weights
