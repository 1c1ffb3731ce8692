package subresources

import (
	"net/http"
	"runtime"
	"runtime/debug"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

// document returns a document that everybody may read, or nil. The API server reads these
// documents to find out whether virt-api is up and what it serves; virtctl reads its version
// first.
func (s *Server) document(r *http.Request) any {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return nil
	}
	var versions []metav1.GroupVersionForDiscovery
	for _, v := range []string{Version, OlderVersion} {
		versions = append(versions, metav1.GroupVersionForDiscovery{GroupVersion: Group + "/" + v, Version: v})
	}
	group := metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: Group,
		Versions: versions, PreferredVersion: versions[0]}
	path, version := inVersion(r.URL.EscapedPath())
	switch path {
	case "/apis":
		member := group
		member.TypeMeta = metav1.TypeMeta{}
		return &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{member}}
	case "/apis/" + Group:
		return &group
	case root:
		return s.resources(version)
	case root + "/version":
		return buildInfo()
	case root + "/healthz":
		return map[string]any{"apiserver": map[string]string{"connectivity": "ok"}}
	}
	return s.openAPI(r.URL.EscapedPath())
}

func (s *Server) resources(version string) *metav1.APIResourceList {
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: Group + "/" + version}
	for _, e := range s.table {
		// Neither kind nor verbs, as KubeVirt has it, so that kubectl does not try to list
		// them.
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: e.Name(), Namespaced: true, Verbs: metav1.Verbs{}})
	}
	return list
}

// buildInfo is the version that virtctl compares with its own.
func buildInfo() *version.Info {
	info := &version.Info{GitVersion: "v0.0.0", GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	if v := build.Main.Version; v != "" && v != "(devel)" {
		info.GitVersion = v
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.GitCommit = setting.Value
		case "vcs.time":
			info.BuildDate = setting.Value
		case "vcs.modified":
			info.GitTreeState = map[string]string{"true": "dirty", "false": "clean"}[setting.Value]
		}
	}
	return info
}
