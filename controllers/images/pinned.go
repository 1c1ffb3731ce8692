package images

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Present returns the images that a pod has, by the containers' or volumes' names, as far as the pod's status says.
func Present(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, c := range pod.Status.InitContainerStatuses {
		out[c.Name] = c.ImageID
	}
	for _, c := range pod.Status.ContainerStatuses {
		for _, m := range c.VolumeMounts {
			if m.VolumeStatus != nil && m.VolumeStatus.Image != nil {
				out[m.Name] = m.VolumeStatus.Image.ImageRef
			}
		}
	}
	return out
}

// pullable matches what runtimes say of an image that was pulled: its repository and its digest.
var pullable = regexp.MustCompile(`^([^@]+)@(sha256:[0-9a-f]{64})$`)

// Pinned returns a reference to the very image that another pod has: a tag may name another image by now. present is
// what that pod's runtime says of its image. The reference stays as it is if the image was not pulled from the
// reference's own repository, which need not have it under this digest, and if nothing may be pulled.
func Pinned(reference string, policy corev1.PullPolicy, present string) string {
	said := pullable.FindStringSubmatch(present)
	repository := repositoryOf(reference)
	if said == nil || policy == corev1.PullNever || strings.Contains(reference, "@") || said[1] != full(repository) {
		return reference
	}
	return repository + "@" + said[2]
}

// repositoryOf returns a reference without its tag.
func repositoryOf(reference string) string {
	if tag := strings.LastIndexByte(reference, ':'); tag > strings.LastIndexByte(reference, '/') {
		return reference[:tag]
	}
	return reference
}

// full returns a repository as runtimes name it, with its registry: Docker's, if it names none. Docker's own images are
// in the folder library.
func full(repository string) string {
	registry, rest, found := strings.Cut(repository, "/")
	switch {
	case !found:
		return "docker.io/library/" + repository
	case registry == "docker.io" || registry == "index.docker.io":
		if !strings.Contains(rest, "/") {
			rest = "library/" + rest
		}
		return "docker.io/" + rest
	case strings.ContainsAny(registry, ".:") || registry == "localhost":
		return repository
	}
	return "docker.io/" + repository
}
