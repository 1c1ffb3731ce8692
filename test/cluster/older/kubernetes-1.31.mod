// What is in place of ../go.mod where `cluster build --release 1.31` builds (build.go). kube-proxy is that of 1.31.11, which has
// the same files: not every proxy has its go.mod of 1.31.13.
module github.com/kubeqemu/kubeqemu/test/cluster

go 1.26.0

godebug default=go1.22

require (
	bitbucket.org/bertimus9/systemstat v0.5.0
	github.com/Azure/go-ansiterm v0.0.0-20210617225240-d185dfc1b5a1
	github.com/JeffAshton/win_pdh v0.0.0-20161109143554-76bb4ee9f0ab
	github.com/MakeNowJust/heredoc v1.0.0
	github.com/Microsoft/go-winio v0.6.0
	github.com/Microsoft/hcsshim v0.8.26
	github.com/NYTimes/gziphandler v1.1.1
	github.com/antlr4-go/antlr/v4 v4.13.0
	github.com/armon/circbuf v0.0.0-20150827004946-bbbad097214e
	github.com/armon/go-socks5 v0.0.0-20160902184237-e75332964ef5
	github.com/asaskevich/govalidator v0.0.0-20190424111038-f61b66f89f4a
	github.com/beorn7/perks v1.0.1
	github.com/blang/semver/v4 v4.0.0
	github.com/cenkalti/backoff/v4 v4.3.0
	github.com/cespare/xxhash/v2 v2.3.0
	github.com/chai2010/gettext-go v1.0.2
	github.com/checkpoint-restore/go-criu/v5 v5.3.0
	github.com/cilium/ebpf v0.9.1
	github.com/container-storage-interface/spec v1.9.0
	github.com/containerd/cgroups v1.1.0
	github.com/containerd/console v1.0.3
	github.com/containerd/ttrpc v1.2.2
	github.com/coredns/caddy v1.1.1
	github.com/coredns/corefile-migration v1.0.23
	github.com/coreos/go-oidc v2.2.1+incompatible
	github.com/coreos/go-semver v0.3.1
	github.com/coreos/go-systemd/v22 v22.5.0
	github.com/cpuguy83/go-md2man/v2 v2.0.4
	github.com/cyphar/filepath-securejoin v0.2.4
	github.com/davecgh/go-spew v1.1.2-0.20180830191138-d8f796af33cc
	github.com/daviddengcn/go-colortext v1.0.0
	github.com/distribution/reference v0.5.0
	github.com/docker/go-units v0.5.0
	github.com/dustin/go-humanize v1.0.1
	github.com/emicklei/go-restful/v3 v3.11.0
	github.com/euank/go-kmsg-parser v2.0.0+incompatible
	github.com/exponent-io/jsonpath v0.0.0-20151013193312-d6023ce2651d
	github.com/fatih/camelcase v1.0.0
	github.com/felixge/httpsnoop v1.0.4
	github.com/fsnotify/fsnotify v1.7.0
	github.com/fxamacker/cbor/v2 v2.7.0
	github.com/go-errors/errors v1.4.2
	github.com/go-logr/logr v1.4.2
	github.com/go-logr/stdr v1.2.2
	github.com/go-logr/zapr v1.3.0
	github.com/go-openapi/jsonpointer v0.19.6
	github.com/go-openapi/jsonreference v0.20.2
	github.com/go-openapi/swag v0.22.4
	github.com/go-task/slim-sprig/v3 v3.0.0
	github.com/godbus/dbus/v5 v5.1.0
	github.com/gogo/protobuf v1.3.2
	github.com/golang-jwt/jwt/v4 v4.5.0
	github.com/golang/groupcache v0.0.0-20210331224755-41bb18bfe9da
	github.com/golang/protobuf v1.5.4
	github.com/google/btree v1.0.1
	github.com/google/cadvisor v0.49.0
	github.com/google/cel-go v0.20.1
	github.com/google/gnostic-models v0.6.8
	github.com/google/go-cmp v0.6.0
	github.com/google/gofuzz v1.2.0
	github.com/google/pprof v0.0.0-20240525223248-4bfdf5a9a2af
	github.com/google/shlex v0.0.0-20191202100458-e7afc7fbc510
	github.com/google/uuid v1.6.0
	github.com/gorilla/websocket v1.5.0
	github.com/gregjones/httpcache v0.0.0-20180305231024-9cad4c3443a7
	github.com/grpc-ecosystem/go-grpc-middleware v1.3.0
	github.com/grpc-ecosystem/go-grpc-prometheus v1.2.0
	github.com/grpc-ecosystem/grpc-gateway v1.16.0
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.20.0
	github.com/imdario/mergo v0.3.6
	github.com/inconshreveable/mousetrap v1.1.0
	github.com/ishidawataru/sctp v0.0.0-20230406120618-7ff4192f6ff2
	github.com/jonboulle/clockwork v0.2.2
	github.com/josharian/intern v1.0.0
	github.com/json-iterator/go v1.1.12
	github.com/karrick/godirwalk v1.17.0
	github.com/libopenstorage/openstorage v1.0.0
	github.com/liggitt/tabwriter v0.0.0-20181228230101-89fcab3d43de
	github.com/lithammer/dedent v1.1.0
	github.com/mailru/easyjson v0.7.7
	github.com/mistifyio/go-zfs v2.1.2-0.20190413222219-f784269be439+incompatible
	github.com/mitchellh/go-wordwrap v1.0.1
	github.com/moby/ipvs v1.1.0
	github.com/moby/spdystream v0.4.0
	github.com/moby/sys/mountinfo v0.7.1
	github.com/moby/term v0.5.0
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd
	github.com/modern-go/reflect2 v1.0.2
	github.com/mohae/deepcopy v0.0.0-20170603005431-491d3605edfb
	github.com/monochromegane/go-gitignore v0.0.0-20200626010858-205db1a8cc00
	github.com/mrunalp/fileutils v0.5.1
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822
	github.com/mxk/go-flowrate v0.0.0-20140419014527-cca7078d478f
	github.com/onsi/ginkgo/v2 v2.19.0
	github.com/onsi/gomega v1.33.1
	github.com/opencontainers/go-digest v1.0.0
	github.com/opencontainers/runc v1.1.13
	github.com/opencontainers/runtime-spec v1.0.3-0.20220909204839-494a5a6aca78
	github.com/opencontainers/selinux v1.11.0
	github.com/peterbourgon/diskv v2.0.1+incompatible
	github.com/pkg/errors v0.9.1
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2
	github.com/pquerna/cachecontrol v0.1.0
	github.com/prometheus/client_golang v1.19.1
	github.com/prometheus/client_model v0.6.1
	github.com/prometheus/common v0.55.0
	github.com/prometheus/procfs v0.15.1
	github.com/robfig/cron/v3 v3.0.1
	github.com/russross/blackfriday/v2 v2.1.0
	github.com/seccomp/libseccomp-golang v0.10.0
	github.com/sirupsen/logrus v1.9.3
	github.com/soheilhy/cmux v0.1.5
	github.com/spf13/cobra v1.8.1
	github.com/spf13/pflag v1.0.5
	github.com/stoewer/go-strcase v1.2.0
	github.com/stretchr/objx v0.5.2
	github.com/stretchr/testify v1.9.0
	github.com/syndtr/gocapability v0.0.0-20200815063812-42c35b437635
	github.com/tmc/grpc-websocket-proxy v0.0.0-20220101234140-673ab2c3ae75
	github.com/vishvananda/netlink v1.1.0
	github.com/vishvananda/netns v0.0.4
	github.com/x448/float16 v0.8.4
	github.com/xiang90/probing v0.0.0-20190116061207-43a291ad63a2
	github.com/xlab/treeprint v1.2.0
	go.etcd.io/bbolt v1.3.9
	go.etcd.io/etcd/api/v3 v3.5.14
	go.etcd.io/etcd/client/pkg/v3 v3.5.14
	go.etcd.io/etcd/client/v2 v2.305.13
	go.etcd.io/etcd/client/v3 v3.5.14
	go.etcd.io/etcd/pkg/v3 v3.5.13
	go.etcd.io/etcd/raft/v3 v3.5.13
	go.etcd.io/etcd/server/v3 v3.5.13
	go.opencensus.io v0.24.0
	go.opentelemetry.io/contrib/instrumentation/github.com/emicklei/go-restful/otelrestful v0.42.0
	go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc v0.53.0
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.53.0
	go.opentelemetry.io/otel v1.28.0
	go.opentelemetry.io/otel/exporters/otlp/otlptrace v1.28.0
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc v1.27.0
	go.opentelemetry.io/otel/metric v1.28.0
	go.opentelemetry.io/otel/sdk v1.28.0
	go.opentelemetry.io/otel/trace v1.28.0
	go.opentelemetry.io/proto/otlp v1.3.1
	go.starlark.net v0.0.0-20230525235612-a134d8f9ddca
	go.uber.org/goleak v1.3.0
	go.uber.org/multierr v1.11.0
	go.uber.org/zap v1.26.0
	golang.org/x/crypto v0.24.0
	golang.org/x/exp v0.0.0-20230515195305-f3d0a9c9a5cc
	golang.org/x/mod v0.17.0
	golang.org/x/net v0.26.0
	golang.org/x/oauth2 v0.21.0
	golang.org/x/sync v0.7.0
	golang.org/x/sys v0.21.0
	golang.org/x/term v0.21.0
	golang.org/x/text v0.16.0
	golang.org/x/time v0.3.0
	golang.org/x/tools v0.21.1-0.20240508182429-e35e4ccd0d2d
	google.golang.org/genproto v0.0.0-20230822172742-b8732ec3820d
	google.golang.org/genproto/googleapis/api v0.0.0-20240528184218-531527333157
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240701130421-f6361c86f094
	google.golang.org/grpc v1.65.0
	google.golang.org/protobuf v1.34.2
	gopkg.in/evanphx/json-patch.v4 v4.12.0
	gopkg.in/inf.v0 v0.9.1
	gopkg.in/natefinch/lumberjack.v2 v2.2.1
	gopkg.in/square/go-jose.v2 v2.6.0
	gopkg.in/yaml.v2 v2.4.0
	gopkg.in/yaml.v3 v3.0.1
	k8s.io/api v0.31.13
	k8s.io/apiextensions-apiserver v0.31.13
	k8s.io/apimachinery v0.31.13
	k8s.io/apiserver v0.31.13
	k8s.io/cli-runtime v0.31.13
	k8s.io/client-go v0.31.13
	k8s.io/cloud-provider v0.31.13
	k8s.io/cluster-bootstrap v0.31.13
	k8s.io/code-generator v0.31.13
	k8s.io/component-base v0.31.13
	k8s.io/component-helpers v0.31.13
	k8s.io/controller-manager v0.31.13
	k8s.io/cri-api v0.31.13
	k8s.io/cri-client v0.31.13
	k8s.io/csi-translation-lib v0.31.13
	k8s.io/dynamic-resource-allocation v0.31.13
	k8s.io/endpointslice v0.31.13
	k8s.io/gengo/v2 v2.0.0-20240228010128-51d4e06bde70
	k8s.io/klog/v2 v2.130.1
	k8s.io/kms v0.31.13
	k8s.io/kube-aggregator v0.31.13
	k8s.io/kube-controller-manager v0.31.13
	k8s.io/kube-openapi v0.0.0-20240228011516-70dd3763d340
	k8s.io/kube-proxy v0.31.11
	k8s.io/kube-scheduler v0.31.13
	k8s.io/kubectl v0.31.13
	k8s.io/kubelet v0.31.13
	k8s.io/kubernetes v1.31.13
	k8s.io/metrics v0.31.13
	k8s.io/mount-utils v0.31.13
	k8s.io/pod-security-admission v0.31.13
	k8s.io/system-validators v1.8.0
	k8s.io/utils v0.0.0-20240711033017-18e509b52bc8
	sigs.k8s.io/apiserver-network-proxy/konnectivity-client v0.30.3
	sigs.k8s.io/json v0.0.0-20221116044647-bc3834ca7abd
	sigs.k8s.io/knftables v0.0.17
	sigs.k8s.io/kustomize/api v0.17.2
	sigs.k8s.io/kustomize/kustomize/v5 v5.4.2
	sigs.k8s.io/kustomize/kyaml v0.17.1
	sigs.k8s.io/structured-merge-diff/v4 v4.4.1
	sigs.k8s.io/yaml v1.4.0
)

replace (
	k8s.io/api => k8s.io/api v0.31.13
	k8s.io/apiextensions-apiserver => k8s.io/apiextensions-apiserver v0.31.13
	k8s.io/apimachinery => k8s.io/apimachinery v0.31.13
	k8s.io/apiserver => k8s.io/apiserver v0.31.13
	k8s.io/cli-runtime => k8s.io/cli-runtime v0.31.13
	k8s.io/client-go => k8s.io/client-go v0.31.13
	k8s.io/cloud-provider => k8s.io/cloud-provider v0.31.13
	k8s.io/cluster-bootstrap => k8s.io/cluster-bootstrap v0.31.13
	k8s.io/code-generator => k8s.io/code-generator v0.31.13
	k8s.io/component-base => k8s.io/component-base v0.31.13
	k8s.io/component-helpers => k8s.io/component-helpers v0.31.13
	k8s.io/controller-manager => k8s.io/controller-manager v0.31.13
	k8s.io/cri-api => k8s.io/cri-api v0.31.13
	k8s.io/cri-client => k8s.io/cri-client v0.31.13
	k8s.io/csi-translation-lib => k8s.io/csi-translation-lib v0.31.13
	k8s.io/dynamic-resource-allocation => k8s.io/dynamic-resource-allocation v0.31.13
	k8s.io/endpointslice => k8s.io/endpointslice v0.31.13
	k8s.io/kms => k8s.io/kms v0.31.13
	k8s.io/kube-aggregator => k8s.io/kube-aggregator v0.31.13
	k8s.io/kube-controller-manager => k8s.io/kube-controller-manager v0.31.13
	k8s.io/kube-proxy => k8s.io/kube-proxy v0.31.11
	k8s.io/kube-scheduler => k8s.io/kube-scheduler v0.31.13
	k8s.io/kubectl => k8s.io/kubectl v0.31.13
	k8s.io/kubelet => k8s.io/kubelet v0.31.13
	k8s.io/metrics => k8s.io/metrics v0.31.13
	k8s.io/mount-utils => k8s.io/mount-utils v0.31.13
	k8s.io/pod-security-admission => k8s.io/pod-security-admission v0.31.13
)
