# syntax=docker/dockerfile:1
ARG BASE=box TAG=${BASE:-x}
FROM --platform=$BUILDPLATFORM ${BASE}:${TAG#x} AS One
MAINTAINER me
ENV A=1 B="two words" C='$A'
ENV D old form
ARG A=x B
LABEL "a b"=c d="$A"
RUN echo $A \
  # between
  && true
RUN ["exec", "form"]
RUN --network=none <<EOF
text $A
EOF
RUN cat <<-E1 <<"E2"
	one
	E1
two
E2
COPY --from=0 --chown=$A:$B --chmod=0644 --link a b* /c/
COPY <<f g ./
$A
f
ADD ["with space", "x"]
WORKDIR rel/$A
USER $A
SHELL ["/bin/sh", "-ec"]
EXPOSE 80 90-92/udp $A
VOLUME ["/v"]
HEALTHCHECK --interval=1s --timeout=2s --start-period=3s --retries=4 CMD x
HEALTHCHECK NONE
STOPSIGNAL 9
ENTRYPOINT x $A
CMD ["y"]
FROM scratch
FROM one
COPY --from=One / /
