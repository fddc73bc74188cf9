# docker buildx bake -f docker/docker-bake.hcl cpu (or sm103)
# `python build.py image` runs this with its contexts, variables and output; see headrace/pipeline/image.py.

variable "BASE_IMAGE" { default = "debian:bookworm-slim" }
variable "VERSION" { default = "0" }
variable "REVISION" { default = "unknown" }
variable "CREATED" { default = "1970-01-01T00:00:00Z" }
variable "SERIES_SHA256" { default = "" }
variable "KERNEL_MODULE" { default = "" }
variable "LOCK_EPOCH" { default = "0" }
variable "SOURCE_DATE_EPOCH" { default = "0" }

group "default" { targets = ["cpu"] }

target "_labels" {
  labels = {
    "org.opencontainers.image.title"    = "headrace"
    "org.opencontainers.image.version"  = VERSION
    "org.opencontainers.image.revision" = REVISION
    "org.opencontainers.image.created"  = CREATED
    "org.opencontainers.image.licenses" = "Apache-2.0"
    "org.headrace.series.sha256"        = SERIES_SHA256
  }
}

target "_common" {
  inherits   = ["_labels"]
  context    = "."
  dockerfile = "docker/Dockerfile"
  platforms  = ["linux/amd64"]
  args = {
    BASE_IMAGE        = BASE_IMAGE
    LOCK_EPOCH        = LOCK_EPOCH
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
  # An attestation names the builder and the time, so two builds would differ.
  attest = ["type=provenance,disabled=true"]
}

target "cpu" {
  inherits = ["_common"]
  target   = "cpu"
  labels   = { "org.headrace.flavor" = "cpu" }
}

target "sm103" {
  inherits = ["_common"]
  target   = "sm103"
  args     = { KERNEL_MODULE = KERNEL_MODULE }
  labels = {
    "org.headrace.flavor"        = "sm103"
    "org.headrace.kernel-module" = KERNEL_MODULE
  }
}
