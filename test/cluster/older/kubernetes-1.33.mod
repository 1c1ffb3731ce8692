// What is in place of ../go.mod where `cluster build --release 1.33` builds (build.go).
module github.com/kubeqemu/kubeqemu/test/cluster

go 1.26.0

godebug default=go1.24

require (
	bitbucket.org/bertimus9/systemstat v0.5.0
	cel.dev/expr v0.19.1
	github.com/Azure/go-ansiterm v0.0.0-20230124172434-306776ec8161
	github.com/JeffAshton/win_pdh v0.0.0-20161109143554-76bb4ee9f0ab
	github.com/MakeNowJust/heredoc v1.0.0
	github.com/Microsoft/go-winio v0.6.2
	github.com/Microsoft/hnslib v0.1.1
	github.com/NYTimes/gziphandler v1.1.1
	github.com/antlr4-go/antlr/v4 v4.13.0
	github.com/armon/circbuf v0.0.0-20190214190532-5111143e8da2
	github.com/armon/go-socks5 v0.0.0-20160902184237-e75332964ef5
	github.com/beorn7/perks v1.0.1
	github.com/blang/semver/v4 v4.0.0
	github.com/cenkalti/backoff/v4 v4.3.0
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/chai2010/gettext-go v1.0.2
	github.com/container-storage-interface/spec v1.9.0
	github.com/containerd/containerd/api v1.8.0
	github.com/containerd/errdefs v1.0.0
	github.com/containerd/errdefs/pkg v0.3.0
	github.com/containerd/log v0.1.0
	github.com/containerd/ttrpc v1.2.6
	github.com/containerd/typeurl/v2 v2.2.2
	github.com/coredns/caddy v1.1.1
	github.com/coredns/corefile-migration v1.0.25
	github.com/coreos/go-oidc v2.3.0+incompatible
	github.com/coreos/go-semver v0.3.1
	github.com/coreos/go-systemd/v22 v22.5.0
	github.com/cpuguy83/go-md2man/v2 v2.0.4
	github.com/cyphar/filepath-securejoin v0.4.1
	github.com/davecgh/go-spew v1.1.1
	github.com/distribution/reference v0.6.0
	github.com/docker/go-units v0.5.0
	github.com/dustin/go-humanize v1.0.1
	github.com/emicklei/go-restful/v3 v3.11.0
	github.com/euank/go-kmsg-parser v2.0.0+incompatible
	github.com/exponent-io/jsonpath v0.0.0-20210407135951-1de76d718b3f
	github.com/fatih/camelcase v1.0.0
	github.com/felixge/httpsnoop v1.0.4
	github.com/fsnotify/fsnotify v1.7.0
	github.com/fxamacker/cbor/v2 v2.7.0
	github.com/go-errors/errors v1.4.2
	github.com/go-logr/logr v1.4.2
	github.com/go-logr/stdr v1.2.2
	github.com/go-logr/zapr v1.3.0
	github.com/go-openapi/jsonpointer v0.21.0
	github.com/go-openapi/jsonreference v0.20.2
	github.com/go-openapi/swag v0.23.0
	github.com/go-task/slim-sprig/v3 v3.0.0
	github.com/godbus/dbus/v5 v5.1.0
	github.com/gogo/protobuf v1.3.2
	github.com/golang-jwt/jwt/v4 v4.5.2
	github.com/golang/protobuf v1.5.4
	github.com/google/btree v1.1.3
	github.com/google/cadvisor v0.52.1
	github.com/google/cel-go v0.23.2
	github.com/google/gnostic-models v0.6.9
	github.com/google/go-cmp v0.7.0
	github.com/google/pprof v0.0.0-20241029153458-d1b30febd7db
	github.com/google/shlex v0.0.0-20191202100458-e7afc7fbc510
	github.com/google/uuid v1.6.0
	github.com/gorilla/websocket v1.5.4-0.20250319132907-e064f32e3674
	github.com/gregjones/httpcache v0.0.0-20190611155906-901d90724c79
	github.com/grpc-ecosystem/go-grpc-middleware v1.3.0
	github.com/grpc-ecosystem/go-grpc-prometheus v1.2.0
	github.com/grpc-ecosystem/grpc-gateway v1.16.0
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.24.0
	github.com/inconshreveable/mousetrap v1.1.0
	github.com/ishidawataru/sctp v0.0.0-20230406120618-7ff4192f6ff2
	github.com/jonboulle/clockwork v0.4.0
	github.com/josharian/intern v1.0.0
	github.com/json-iterator/go v1.1.12
	github.com/karrick/godirwalk v1.17.0
	github.com/kylelemons/godebug v1.1.0
	github.com/libopenstorage/openstorage v1.0.0
	github.com/liggitt/tabwriter v0.0.0-20181228230101-89fcab3d43de
	github.com/lithammer/dedent v1.1.0
	github.com/mailru/easyjson v0.7.7
	github.com/mistifyio/go-zfs v2.1.2-0.20190413222219-f784269be439+incompatible
	github.com/mitchellh/go-wordwrap v1.0.1
	github.com/moby/ipvs v1.1.0
	github.com/moby/spdystream v0.5.0
	github.com/moby/sys/mountinfo v0.7.2
	github.com/moby/sys/userns v0.1.0
	github.com/moby/term v0.5.0
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd
	github.com/modern-go/reflect2 v1.0.2
	github.com/mohae/deepcopy v0.0.0-20170929034955-c48cc78d4826
	github.com/monochromegane/go-gitignore v0.0.0-20200626010858-205db1a8cc00
	github.com/mrunalp/fileutils v0.5.1
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822
	github.com/mxk/go-flowrate v0.0.0-20140419014527-cca7078d478f
	github.com/onsi/ginkgo/v2 v2.21.0
	github.com/onsi/gomega v1.35.1
	github.com/opencontainers/cgroups v0.0.1
	github.com/opencontainers/go-digest v1.0.0
	github.com/opencontainers/image-spec v1.1.1
	github.com/opencontainers/runtime-spec v1.2.0
	github.com/opencontainers/selinux v1.11.1
	github.com/peterbourgon/diskv v2.0.1+incompatible
	github.com/pkg/errors v0.9.1
	github.com/pmezard/go-difflib v1.0.0
	github.com/pquerna/cachecontrol v0.1.0
	github.com/prometheus/client_golang v1.22.0
	github.com/prometheus/client_model v0.6.1
	github.com/prometheus/common v0.62.0
	github.com/prometheus/procfs v0.15.1
	github.com/robfig/cron/v3 v3.0.1
	github.com/russross/blackfriday/v2 v2.1.0
	github.com/sirupsen/logrus v1.9.3
	github.com/soheilhy/cmux v0.1.5
	github.com/spf13/cobra v1.8.1
	github.com/spf13/pflag v1.0.5
	github.com/stoewer/go-strcase v1.3.0
	github.com/stretchr/objx v0.5.2
	github.com/stretchr/testify v1.10.0
	github.com/tmc/grpc-websocket-proxy v0.0.0-20220101234140-673ab2c3ae75
	github.com/vishvananda/netlink v1.3.1-0.20250206174618-62fb240731fa
	github.com/vishvananda/netns v0.0.4
	github.com/x448/float16 v0.8.4
	github.com/xiang90/probing v0.0.0-20221125231312-a49e3df8f510
	github.com/xlab/treeprint v1.2.0
	go.etcd.io/bbolt v1.3.11
	go.etcd.io/etcd/api/v3 v3.5.21
	go.etcd.io/etcd/client/pkg/v3 v3.5.21
	go.etcd.io/etcd/client/v2 v2.305.21
	go.etcd.io/etcd/client/v3 v3.5.21
	go.etcd.io/etcd/pkg/v3 v3.5.21
	go.etcd.io/etcd/raft/v3 v3.5.21
	go.etcd.io/etcd/server/v3 v3.5.21
	go.opentelemetry.io/auto/sdk v1.1.0
	go.opentelemetry.io/contrib/instrumentation/github.com/emicklei/go-restful/otelrestful v0.42.0
	go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc v0.58.0
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.58.0
	go.opentelemetry.io/otel v1.33.0
	go.opentelemetry.io/otel/exporters/otlp/otlptrace v1.33.0
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc v1.33.0
	go.opentelemetry.io/otel/metric v1.33.0
	go.opentelemetry.io/otel/sdk v1.33.0
	go.opentelemetry.io/otel/trace v1.33.0
	go.opentelemetry.io/proto/otlp v1.4.0
	go.uber.org/goleak v1.3.0
	go.uber.org/multierr v1.11.0
	go.uber.org/zap v1.27.0
	golang.org/x/crypto v0.36.0
	golang.org/x/exp v0.0.0-20240719175910-8a7402abbf56
	golang.org/x/mod v0.21.0
	golang.org/x/net v0.38.0
	golang.org/x/oauth2 v0.27.0
	golang.org/x/sync v0.12.0
	golang.org/x/sys v0.31.0
	golang.org/x/term v0.30.0
	golang.org/x/text v0.23.0
	golang.org/x/time v0.9.0
	golang.org/x/tools v0.26.0
	google.golang.org/genproto v0.0.0-20240123012728-ef4313101c80
	google.golang.org/genproto/googleapis/api v0.0.0-20241209162323-e6fa225c2576
	google.golang.org/genproto/googleapis/rpc v0.0.0-20241209162323-e6fa225c2576
	google.golang.org/grpc v1.68.1
	google.golang.org/protobuf v1.36.5
	gopkg.in/evanphx/json-patch.v4 v4.12.0
	gopkg.in/go-jose/go-jose.v2 v2.6.3
	gopkg.in/inf.v0 v0.9.1
	gopkg.in/natefinch/lumberjack.v2 v2.2.1
	gopkg.in/yaml.v3 v3.0.1
	k8s.io/api v0.33.5
	k8s.io/apiextensions-apiserver v0.33.5
	k8s.io/apimachinery v0.33.5
	k8s.io/apiserver v0.33.5
	k8s.io/cli-runtime v0.33.5
	k8s.io/client-go v0.33.5
	k8s.io/cloud-provider v0.33.5
	k8s.io/cluster-bootstrap v0.33.5
	k8s.io/code-generator v0.33.5
	k8s.io/component-base v0.33.5
	k8s.io/component-helpers v0.33.5
	k8s.io/controller-manager v0.33.5
	k8s.io/cri-api v0.33.5
	k8s.io/cri-client v0.33.5
	k8s.io/csi-translation-lib v0.33.5
	k8s.io/dynamic-resource-allocation v0.33.5
	k8s.io/endpointslice v0.33.5
	k8s.io/externaljwt v0.33.5
	k8s.io/gengo/v2 v2.0.0-20250207200755-1244d31929d7
	k8s.io/klog/v2 v2.130.1
	k8s.io/kms v0.33.5
	k8s.io/kube-aggregator v0.33.5
	k8s.io/kube-controller-manager v0.33.5
	k8s.io/kube-openapi v0.0.0-20250318190949-c8a335a9a2ff
	k8s.io/kube-proxy v0.33.5
	k8s.io/kube-scheduler v0.33.5
	k8s.io/kubectl v0.33.5
	k8s.io/kubelet v0.33.5
	k8s.io/kubernetes v1.33.5
	k8s.io/metrics v0.33.5
	k8s.io/mount-utils v0.33.5
	k8s.io/pod-security-admission v0.33.5
	k8s.io/system-validators v1.9.1
	k8s.io/utils v0.0.0-20241104100929-3ea5e8cea738
	sigs.k8s.io/apiserver-network-proxy/konnectivity-client v0.31.2
	sigs.k8s.io/json v0.0.0-20241010143419-9aa6b5e7a4b3
	sigs.k8s.io/knftables v0.0.17
	sigs.k8s.io/kustomize/api v0.19.0
	sigs.k8s.io/kustomize/kustomize/v5 v5.6.0
	sigs.k8s.io/kustomize/kyaml v0.19.0
	sigs.k8s.io/randfill v1.0.0
	sigs.k8s.io/structured-merge-diff/v4 v4.6.0
	sigs.k8s.io/yaml v1.4.0
)

require github.com/golang/groupcache v0.0.0-20210331224755-41bb18bfe9da // indirect

replace (
	k8s.io/api => k8s.io/api v0.33.5
	k8s.io/apiextensions-apiserver => k8s.io/apiextensions-apiserver v0.33.5
	k8s.io/apimachinery => k8s.io/apimachinery v0.33.5
	k8s.io/apiserver => k8s.io/apiserver v0.33.5
	k8s.io/cli-runtime => k8s.io/cli-runtime v0.33.5
	k8s.io/client-go => k8s.io/client-go v0.33.5
	k8s.io/cloud-provider => k8s.io/cloud-provider v0.33.5
	k8s.io/cluster-bootstrap => k8s.io/cluster-bootstrap v0.33.5
	k8s.io/code-generator => k8s.io/code-generator v0.33.5
	k8s.io/component-base => k8s.io/component-base v0.33.5
	k8s.io/component-helpers => k8s.io/component-helpers v0.33.5
	k8s.io/controller-manager => k8s.io/controller-manager v0.33.5
	k8s.io/cri-api => k8s.io/cri-api v0.33.5
	k8s.io/cri-client => k8s.io/cri-client v0.33.5
	k8s.io/csi-translation-lib => k8s.io/csi-translation-lib v0.33.5
	k8s.io/dynamic-resource-allocation => k8s.io/dynamic-resource-allocation v0.33.5
	k8s.io/endpointslice => k8s.io/endpointslice v0.33.5
	k8s.io/externaljwt => k8s.io/externaljwt v0.33.5
	k8s.io/kms => k8s.io/kms v0.33.5
	k8s.io/kube-aggregator => k8s.io/kube-aggregator v0.33.5
	k8s.io/kube-controller-manager => k8s.io/kube-controller-manager v0.33.5
	k8s.io/kube-proxy => k8s.io/kube-proxy v0.33.5
	k8s.io/kube-scheduler => k8s.io/kube-scheduler v0.33.5
	k8s.io/kubectl => k8s.io/kubectl v0.33.5
	k8s.io/kubelet => k8s.io/kubelet v0.33.5
	k8s.io/metrics => k8s.io/metrics v0.33.5
	k8s.io/mount-utils => k8s.io/mount-utils v0.33.5
	k8s.io/pod-security-admission => k8s.io/pod-security-admission v0.33.5
)
